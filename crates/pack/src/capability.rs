//! File capabilities (`security.capability`) across the id shift. The kernel honours such an attribute inside a user
//! namespace only if it names that namespace's root (version 3, linux/capability.h); archives carry version 2.

const VERSION_MASK: u32 = 0xff00_0000;
const VERSION_2: u32 = 0x0200_0000;
const VERSION_3: u32 = 0x0300_0000;

/// The attribute as it has to be written for a file of the namespace with this root; `None` when it has no known shape. A
/// version-3 value belongs to somebody else's namespace and is rewritten for ours.
#[must_use]
pub fn shifted(value: &[u8], root: u32) -> Option<Vec<u8>> {
    let magic = u32::from_le_bytes(value.get(..4)?.try_into().ok()?);
    match (magic & VERSION_MASK, value.len()) {
        (VERSION_2, 20) | (VERSION_3, 24) => {
            let mut shifted = (VERSION_3 | (magic & !VERSION_MASK)).to_le_bytes().to_vec();
            shifted.extend_from_slice(&value[4..20]);
            shifted.extend_from_slice(&root.to_le_bytes());
            Some(shifted)
        }
        _ => None,
    }
}

/// The attribute as archives carry it; `None` for one that is not of the namespace with this root. The first namespace of a
/// kernel, whose root is 0, has them as archives do.
#[must_use]
pub fn unshifted(value: &[u8], root: u32) -> Option<Vec<u8>> {
    let magic = u32::from_le_bytes(value.get(..4)?.try_into().ok()?);
    let ours = match (magic & VERSION_MASK, value.len()) {
        (VERSION_2, 20) => root == 0,
        (VERSION_3, 24) => value[20..] == root.to_le_bytes(),
        _ => false,
    };
    ours.then(|| {
        let mut plain = (VERSION_2 | (magic & !VERSION_MASK)).to_le_bytes().to_vec();
        plain.extend_from_slice(&value[4..20]);
        plain
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_two_becomes_three_of_our_root() {
        let root = 1_000_000;
        let mut v2 = (VERSION_2 | 1).to_le_bytes().to_vec();
        v2.extend_from_slice(&[9; 16]);
        let v3 = shifted(&v2, root).unwrap();
        assert_eq!(v3.len(), 24);
        assert_eq!(v3[..4], (VERSION_3 | 1).to_le_bytes());
        assert_eq!(v3[20..], root.to_le_bytes());
        assert_eq!(shifted(&v3, root).unwrap(), v3);
        assert_eq!(unshifted(&v3, root).unwrap(), v2);
        assert!(unshifted(&v2, root).is_none() && unshifted(&v3, root + 1).is_none());
        assert_eq!(unshifted(&v2, 0).unwrap(), v2);
        assert!(unshifted(&v3, 0).is_none());
        assert!(shifted(&v2[..19], root).is_none() && unshifted(&v2[..19], 0).is_none());
        assert!(shifted(&[], root).is_none());
    }
}
