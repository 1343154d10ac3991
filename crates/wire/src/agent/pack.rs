//! Packing what was written on the disk of a virtual machine, by the outer half of its agent. `POST` to [`PACK_PATH`] with a
//! [`PackRequest`] in the query stops the workload where it is; 200 then, and the archive for a body. Its one trailer,
//! [`PackEnd::TRAILER`], says whether it is whole. The workload goes on when the body has ended, or nobody reads it any more.

use serde::{Deserialize, Serialize};

/// Where it is asked for.
pub const PACK_PATH: &str = "/pack";

/// What is to be packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackRequest {
    /// All that is to be seen, not only what was written.
    pub everything: bool,
    /// Most bytes of content.
    pub max_bytes: u64,
    /// Paths from the root that are left out.
    pub except: Vec<String>,
}

impl PackRequest {
    /// As the query of an URI; `None` when a path is not of letters, digits and a few signs.
    #[must_use]
    pub fn to_query(&self) -> Option<String> {
        let plain = |path: &String| {
            !path.is_empty() && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b))
        };
        let extent = if self.everything { "everything" } else { "written" };
        self.except
            .iter()
            .all(plain)
            .then(|| format!("{extent}&{}&{}", self.max_bytes, self.except.join(",")))
    }

    /// Reads such a query; `None` when it is none.
    #[must_use]
    pub fn from_query(query: &str) -> Option<Self> {
        let mut parts = query.split('&');
        let everything = match parts.next()? {
            "everything" => true,
            "written" => false,
            _ => return None,
        };
        let max_bytes = parts.next()?.parse().ok()?;
        let except = parts.next()?.split(',').filter(|path| !path.is_empty()).map(str::to_owned).collect();
        parts.next().is_none().then_some(Self { everything, max_bytes, except })
    }
}

/// How an archive ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum PackEnd {
    /// It is whole.
    Whole,
    /// Something cannot be said in an archive.
    Refused {
        /// Where it is, from the root.
        path: String,
        /// What is wrong with it, as a clause.
        reason: String,
    },
    /// There is more than was asked for.
    TooLarge,
    /// It could not be read.
    Failed,
}

impl PackEnd {
    /// The trailer that holds it, as JSON.
    pub const TRAILER: &str = "pack-end";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_out_as_they_went_in_and_nothing_else_does() {
        let except = vec!["etc/hosts".to_owned(), "a.b-c_d".to_owned()];
        for request in [
            PackRequest { everything: false, max_bytes: 0, except },
            PackRequest { everything: true, max_bytes: u64::MAX, except: Vec::new() },
        ] {
            let query = request.to_query().unwrap();
            assert_eq!(PackRequest::from_query(&query), Some(request), "{query}");
        }
        for bad in ["a,b", "a&b", "", "a b", "\u{e9}"] {
            let request = PackRequest { everything: true, max_bytes: 1, except: vec![bad.to_owned()] };
            assert_eq!(request.to_query(), None, "{bad}");
        }
        for bad in ["", "written", "written&1", "some&1&", "written&-1&", "written&1&&", "written&1&a&b"] {
            assert_eq!(PackRequest::from_query(bad), None, "{bad}");
        }
    }
}
