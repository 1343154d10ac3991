//! Pictures as PNG or JPEG.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use wire::desktop::{FrameFormat, MAX_SCREENSHOT_BYTES, ScreenshotResponse};

use super::fault::Fault;
use super::screen::Picture;

/// Text stays readable, and a noisy screen of 1280x800 has a third of its PNG.
const JPEG_QUALITY: u8 = 82;

/// Encodes a picture.
pub(super) fn encode(picture: &Picture, format: FrameFormat) -> Result<Vec<u8>, Fault> {
    let mut sink = Bounded { bytes: Vec::new(), full: false };
    let done = match format {
        FrameFormat::Png => png(picture, &mut sink),
        FrameFormat::Jpeg => jpeg_encoder::Encoder::new(&mut sink, JPEG_QUALITY)
            .encode(&picture.pixels, picture.width, picture.height, jpeg_encoder::ColorType::Bgra)
            .map_err(|error| error.to_string()),
    };
    match done {
        Ok(()) => Ok(sink.bytes),
        Err(_) if sink.full => Err(Fault::internal(format!(
            "the picture has more than {MAX_SCREENSHOT_BYTES} bytes; ask for FRAME_FORMAT_JPEG or make the screen smaller"
        ))),
        Err(error) => Err(Fault::internal(format!("the picture cannot be encoded: {error}"))),
    }
}

fn png(picture: &Picture, sink: &mut Bounded) -> Result<(), String> {
    let pixels: Vec<u8> =
        picture.pixels.chunks_exact(4).flat_map(|pixel| [pixel[2], pixel[1], pixel[0]]).collect();
    let mut encoder = png::Encoder::new(sink, picture.width.into(), picture.height.into());
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let write = |encoder: png::Encoder<'_, _>| {
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        writer.finish()
    };
    write(encoder).map_err(|error| error.to_string())
}

/// The answer that carries a picture.
pub(super) fn answer(picture: &Picture, format: FrameFormat) -> Result<ScreenshotResponse, Fault> {
    Ok(ScreenshotResponse {
        image: STANDARD.encode(encode(picture, format)?),
        width: picture.width.into(),
        height: picture.height.into(),
        format,
    })
}

/// Takes as much as a picture may have.
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_SCREENSHOT_BYTES {
            self.full = true;
            return Err(io::Error::other("too large"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats() {
        let picture = Picture { width: 16, height: 8, pixels: [10, 20, 200, 0].repeat(128) };
        let png = encode(&picture, FrameFormat::Png).unwrap();
        let mut reader = png::Decoder::new(io::Cursor::new(&png)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, [200, 20, 10].repeat(128));
        let jpeg = encode(&picture, FrameFormat::Jpeg).unwrap();
        assert!(jpeg.starts_with(&[0xff, 0xd8, 0xff]) && jpeg.ends_with(&[0xff, 0xd9]));
    }
}
