//! The kernel as Firecracker takes it: an ELF file. Distributions have it compressed inside an image that unpacks itself (the
//! kernel's Documentation/arch/x86/boot.rst); where it lies in there is in the image's header.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

/// Unpacked, a distribution's kernel has 50 to 80 MB.
const MAX_BYTES: usize = 512 * 1024 * 1024;
/// Blocks of LZ4's old format unpack to at most so much.
const LZ4_BLOCK_BYTES: usize = 8 * 1024 * 1024;

const ELF: &[u8] = b"\x7fELF";
const LZ4: &[u8] = b"\x02\x21\x4c\x18";
const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
const XZ: &[u8] = b"\xfd7zXZ\0";

/// The kernel out of a file that is it, or has it.
pub(crate) fn from_image(image: Vec<u8>) -> io::Result<Vec<u8>> {
    if image.starts_with(ELF) {
        return Ok(image);
    }
    let payload = payload(&image).ok_or_else(|| bad("it is neither an ELF file nor a bzImage"))?;
    let kernel = unpack(payload)?;
    if kernel.starts_with(ELF) { Ok(kernel) } else { Err(bad("what it contains is no ELF file")) }
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the guest kernel cannot be unpacked: {why}"))
}

/// The compressed kernel in an image.
fn payload(image: &[u8]) -> Option<&[u8]> {
    /// Of the header, by offset in the file: its mark, the version that has the fields below.
    const MARK: usize = 0x202;
    const VERSION: usize = 0x206;
    const FIRST_VERSION: u16 = 0x208;
    /// Sectors of the part that runs first; 0 means 4.
    const SETUP: usize = 0x1f1;
    const OFFSET: usize = 0x248;
    const LENGTH: usize = 0x24c;
    let number = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let version = u16::from_le_bytes(image.get(VERSION..VERSION + 2)?.try_into().ok()?);
    if image.get(MARK..MARK + 4)? != b"HdrS" || version < FIRST_VERSION {
        return None;
    }
    let sectors = match *image.get(SETUP)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + number(OFFSET)?;
    image.get(start..start.checked_add(number(LENGTH)?)?)
}

/// The payload ends with the length of what it contains, which is not believed.
fn unpack(payload: &[u8]) -> io::Result<Vec<u8>> {
    if payload.starts_with(LZ4) {
        return unpack_lz4(&payload[LZ4.len()..]);
    }
    if payload.starts_with(GZIP) {
        return bounded(flate2::read::GzDecoder::new(payload));
    }
    if payload.starts_with(ZSTD) {
        return bounded(ruzstd::decoding::StreamingDecoder::new(payload).map_err(io::Error::other)?);
    }
    if payload.starts_with(XZ) {
        return unpack_xz(payload);
    }
    Err(bad("its compression is unknown (gzip, lz4, xz and zstd are known); give an uncompressed vmlinux"))
}

fn bounded(from: impl Read) -> io::Result<Vec<u8>> {
    let mut kernel = Vec::new();
    from.take(MAX_BYTES as u64 + 1).read_to_end(&mut kernel)?;
    if kernel.len() > MAX_BYTES { Err(bad("it is too large")) } else { Ok(kernel) }
}

/// The old format: blocks, each after its length, until what follows is none.
fn unpack_lz4(mut rest: &[u8]) -> io::Result<Vec<u8>> {
    let mut kernel = Vec::new();
    let mut block = vec![0; LZ4_BLOCK_BYTES];
    // The last four bytes are the length of it all.
    while rest.len() > 4 {
        let length = u32::from_le_bytes(rest[..4].try_into().map_err(io::Error::other)?) as usize;
        let packed = rest.get(4..4 + length).ok_or_else(|| bad("it ends too early"))?;
        let unpacked = lz4_flex::block::decompress_into(packed, &mut block).map_err(io::Error::other)?;
        if kernel.len() + unpacked > MAX_BYTES {
            return Err(bad("it is too large"));
        }
        kernel.extend_from_slice(&block[..unpacked]);
        rest = &rest[4 + length..];
    }
    Ok(kernel)
}

/// By the program, which every distribution that packs its kernels so has: no library here knows the filter for machine code.
fn unpack_xz(payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut xz = Command::new("xz")
        .args(["--decompress", "--stdout", "--single-stream"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| {
            io::Error::new(error.kind(), format!("xz (apt-get install -y xz-utils): {error}"))
        })?;
    let (input, output) = (xz.stdin.take(), xz.stdout.take());
    let kernel = std::thread::scope(|scope| {
        scope.spawn(move || {
            // It stops reading at the end of the stream; the length after it is not its business.
            let _closed = input.map(|mut input| input.write_all(payload));
        });
        output.map(bounded).unwrap_or_else(|| Err(bad("xz says nothing")))
    });
    if kernel.is_err() {
        let _it_has_ended = xz.kill();
    }
    xz.wait()?;
    kernel
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image with a payload, as the kernel's build makes it.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 3 * 512 + 100];
        image[0x1f1] = 2;
        image[0x202..0x208].copy_from_slice(b"HdrS\x0f\x02");
        image[0x248..0x24c].copy_from_slice(&100_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        [&image, payload, b"what follows"].concat()
    }

    fn kernel() -> Vec<u8> {
        let mut kernel = ELF.to_vec();
        // More than one block, and not all the same.
        kernel.extend((0..4_000_000_u32).flat_map(u32::to_le_bytes));
        kernel
    }

    fn by_program(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        std::fs::write(&plain, input).unwrap();
        let output = Command::new(program).args(arguments).arg(&plain).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let length = u32::try_from(input.len()).unwrap().to_le_bytes();
        [&output.stdout[..], &length].concat()
    }

    fn lz4(input: &[u8]) -> Vec<u8> {
        let mut packed = LZ4.to_vec();
        for block in input.chunks(LZ4_BLOCK_BYTES) {
            let block = lz4_flex::block::compress(block);
            packed.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
            packed.extend(block);
        }
        packed.extend(u32::try_from(input.len()).unwrap().to_le_bytes());
        packed
    }

    #[test]
    fn kernels_are_found_however_they_are_packed() {
        let kernel = kernel();
        assert!(from_image(kernel.clone()).unwrap() == kernel);
        assert!(from_image(image(&lz4(&kernel))).unwrap() == kernel);
        for (program, arguments) in [("gzip", &["-c"][..]), ("xz", &["-c", "-0", "--check=crc32"])] {
            let packed = by_program(program, arguments, &kernel);
            assert!(from_image(image(&packed)).unwrap() == kernel, "{program}");
        }
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let whole = image(&lz4(&kernel()));
        for cut in [0, 0x1f0, 0x24f, 1_000, whole.len() - 100] {
            assert!(from_image(whole[..cut].to_vec()).is_err(), "{cut}");
        }
        let mut lying = whole.clone();
        lying[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(from_image(lying).is_err());
        for payload in [
            lz4(b"no ELF"),
            b"unknown".to_vec(),
            [LZ4, &u32::MAX.to_le_bytes(), b"short"].concat(),
            [LZ4, &6_u32.to_le_bytes(), b"\xff\xff\xff\xff\xff\xff----"].concat(),
            [GZIP, b"rubbish"].concat(),
            [XZ, b"rubbish"].concat(),
            [ZSTD, b"rubbish"].concat(),
        ] {
            assert!(from_image(image(&payload)).is_err());
        }
        // A gigabyte of zeros in a few bytes.
        let mut zeros = LZ4.to_vec();
        let block = lz4_flex::block::compress(&vec![0; LZ4_BLOCK_BYTES]);
        for _ in 0..=MAX_BYTES / LZ4_BLOCK_BYTES {
            zeros.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
            zeros.extend(&block);
        }
        zeros.extend([0; 4]);
        assert!(from_image(image(&zeros)).unwrap_err().to_string().contains("large"));
    }
}
