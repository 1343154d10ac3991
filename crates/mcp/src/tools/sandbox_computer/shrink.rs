//! Pictures that are too large even as JPEG: noise, or very large screens. They are encoded again, coarser and then smaller by
//! whole numbers, so that a model can calculate. The guest made them: what is decoded is bounded before.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::{Mutex, MutexGuard};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::picture::{Kind, MAX_EDGE, Picture};

/// Largest screen whose picture is decoded, pixels: 4096x2560. It takes three bytes of each.
const MAX_PIXELS: i64 = 4096 * 2560;
/// Quality of what is encoded again; text is still legible.
const QUALITY: u8 = 50;
/// Sizes that are tried, as parts of the whole.
const SCALES: [usize; 4] = [1, 2, 4, 8];

/// One picture at a time in the whole process: it bounds memory, and processors are for others, too.
static TURN: Mutex<()> = Mutex::const_new(());

/// The picture in a form that clients take, if there is one.
pub(super) async fn fit(picture: Picture) -> Option<Picture> {
    let (width, height) = picture.screen;
    if picture.kind != Kind::Jpeg || width * height > MAX_PIXELS {
        return None;
    }
    let turn = TURN.lock().await;
    // Not to be stopped half-way, and done in a fraction of a second.
    tokio::task::spawn_blocking(move || smaller(&picture, &turn)).await.ok().flatten()
}

fn smaller(picture: &Picture, _turn: &MutexGuard<'_, ()>) -> Option<Picture> {
    let (width, height) = (usize::try_from(picture.screen.0).ok()?, usize::try_from(picture.screen.1).ok()?);
    let jpeg = STANDARD.decode(&picture.base64).ok()?;
    let options = DecoderOptions::new_fast()
        .set_max_width(width)
        .set_max_height(height)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let pixels = JpegDecoder::new_with_options(ZCursor::new(jpeg), options).decode().ok()?;
    if pixels.len() != width * height * 3 {
        return None;
    }
    let scales = SCALES
        .into_iter()
        .filter(|scale| width.max(height) / scale <= usize::try_from(MAX_EDGE).unwrap_or(0));
    scales.filter_map(|scale| scaled(picture, &pixels, width, height, scale)).find(Picture::fits)
}

/// Each pixel the mean of a square. What is left over at the right and the bottom is less than a square.
fn scaled(picture: &Picture, pixels: &[u8], width: usize, height: usize, scale: usize) -> Option<Picture> {
    let (small_width, small_height) = (width / scale, height / scale);
    let mut small = Vec::with_capacity(small_width * small_height * 3);
    let square = u32::try_from(scale * scale).ok()?;
    for y in 0..small_height {
        for x in 0..small_width {
            for channel in 0..3 {
                let row = |dy: usize| ((y * scale + dy) * width + x * scale) * 3 + channel;
                let sum: u32 = (0..scale)
                    .flat_map(|dy| (0..scale).map(move |dx| row(dy) + dx * 3))
                    .map(|at| u32::from(pixels[at]))
                    .sum();
                small.push(u8::try_from(sum / square).unwrap_or(u8::MAX));
            }
        }
    }
    let mut jpeg = Vec::new();
    let (encoded_width, encoded_height) =
        (u16::try_from(small_width).ok()?, u16::try_from(small_height).ok()?);
    jpeg_encoder::Encoder::new(&mut jpeg, QUALITY)
        .encode(&small, encoded_width, encoded_height, jpeg_encoder::ColorType::Rgb)
        .ok()?;
    let scale = i64::try_from(scale).ok()?;
    Some(Picture { base64: STANDARD.encode(jpeg), kind: Kind::Jpeg, screen: picture.screen, scale })
}

#[cfg(test)]
mod tests {
    use super::*;

    use client::{FrameFormat, ScreenshotResponse};

    /// A screen of noise, as the agent sends it.
    fn noise(width: u16, height: u16) -> Picture {
        let mut state = 1u32;
        let pixels: Vec<u8> = (0..usize::from(width) * usize::from(height) * 3)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state.to_be_bytes()[0]
            })
            .collect();
        let mut jpeg = Vec::new();
        let encoder = jpeg_encoder::Encoder::new(&mut jpeg, 82);
        encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
        let image = STANDARD.encode(jpeg);
        Picture::new(ScreenshotResponse { image, format: FrameFormat::Jpeg, ..ScreenshotResponse::default() })
            .unwrap()
    }

    #[tokio::test]
    async fn noise_of_the_usual_size_keeps_its_size() {
        let picture = noise(1280, 800);
        assert!(!picture.fits());
        let fit = fit(picture).await.unwrap();
        assert!(fit.fits() && fit.remark().is_empty(), "{} bytes", fit.base64.len());
        let again =
            Picture::new(ScreenshotResponse { image: fit.base64, ..ScreenshotResponse::default() }).unwrap();
        assert_eq!((again.kind, again.screen), (Kind::Jpeg, (1280, 800)));
    }

    #[tokio::test]
    async fn a_larger_one_is_smaller_by_a_whole_number_and_says_so() {
        let fit = fit(noise(2000, 1001)).await.unwrap();
        assert!(fit.fits());
        assert_eq!((fit.scale, fit.screen), (2, (2000, 1001)));
        assert!(fit.remark().contains("multiply those of the picture by 2"), "{}", fit.remark());
        let again =
            Picture::new(ScreenshotResponse { image: fit.base64, ..ScreenshotResponse::default() }).unwrap();
        assert_eq!(again.screen, (1000, 500));
    }

    #[tokio::test]
    async fn what_is_no_picture_inside_or_too_large_is_none() {
        let whole = noise(64, 64);
        for (base64, screen) in [
            (whole.base64[..400].to_owned(), whole.screen),
            (whole.base64.clone(), (4096, 4096)),
            (whole.base64.clone(), (32, 32)),
        ] {
            let broken = Picture { base64, screen, kind: Kind::Jpeg, scale: 1 };
            assert!(fit(broken).await.is_none(), "{screen:?}");
        }
    }
}
