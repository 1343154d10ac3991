//! Base64 as models write it: line breaks inside, either alphabet, padding or none. What cannot be right is refused
//! before any request; a file is never silently shortened (`spec/mcp.md` §C.7).

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Without padding, which is checked here, and without insisting that unused bits of the last character are zero.
const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// The text is not base64; says why, as a clause.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid(pub(crate) String);

/// Decodes the standard or the URL-safe alphabet, white space ignored, padding optional.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, Invalid> {
    let mut digits: Vec<u8> = text
        .bytes()
        .filter(|b| !matches!(b, b'\t' | b'\n' | 0x0b | 0x0c | b'\r' | b' '))
        .map(|b| match b {
            b'-' => b'+',
            b'_' => b'/',
            other => other,
        })
        .collect();
    let padded = digits.len();
    while digits.last() == Some(&b'=') {
        digits.pop();
    }
    let padding = padded - digits.len();
    if digits.contains(&b'=') {
        return Err(Invalid("`=` is only allowed at the end".to_owned()));
    }
    if let Some(bad) = digits.iter().find(|b| !b.is_ascii_alphanumeric() && !matches!(b, b'+' | b'/')) {
        return Err(Invalid(if bad.is_ascii_graphic() {
            format!("the character `{}` is not part of the alphabet", char::from(*bad))
        } else {
            "it contains a character that is not part of the alphabet".to_owned()
        }));
    }
    if padding > 2 {
        return Err(Invalid("more than two `=`".to_owned()));
    }
    if padding > 0 && !padded.is_multiple_of(4) {
        return Err(Invalid("the padded length is not a multiple of 4".to_owned()));
    }
    if digits.len() % 4 == 1 {
        return Err(Invalid("the length is impossible; is the end missing?".to_owned()));
    }
    ENGINE.decode(&digits).map_err(|_| Invalid("it does not decode".to_owned()))
}

/// Encodes with the standard alphabet and padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_models_write() {
        let bytes = [0u8, 1, 2, 0xff, 0xfe, 0xfb];
        for text in ["AAEC//77", "AAEC__77", "AAEC_/77", " AA\nEC\t//\r\n77\x0b\x0c"] {
            assert_eq!(decode(text).unwrap(), bytes, "{text:?}");
        }
        for text in ["AAEC/w==", "AAEC_w", "AAEC/w"] {
            assert_eq!(decode(text).unwrap(), [0, 1, 2, 0xff], "{text:?}");
        }
        assert_eq!(decode("").unwrap(), Vec::<u8>::new());
        assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
    }

    #[test]
    fn refuses_what_cannot_be_right() {
        for text in ["AA!C", "AA=C", "=", "====", "A===", "AAEC=", "AAECA", "AAEC/w=", "AAéC", "A", "Zg==="]
        {
            assert!(decode(text).is_err(), "{text:?}");
        }
    }
}
