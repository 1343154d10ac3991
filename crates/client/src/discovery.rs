//! Where the data plane of a control plane is: a given address, the vendor's known pairs, or the platform's own
//! descriptor. A token must never go to a host that the control plane did not name, so there is no fallback.

use http::Method;
use reqwest::Url;
use wire::well_known::{Descriptor, PATH};

use crate::control::{Call, Client, parse_base_url};
use crate::error::ClientError;

/// A found data plane.
#[derive(Debug, Clone)]
pub(crate) struct DataPlane {
    /// Base URL without a trailing slash; the sandbox is named by a header.
    pub(crate) base: String,
}

/// The vendor's pairs (`spec/data-plane.md` §1.1).
const VENDOR: &[(&str, &str)] = &[
    ("api.superserve.ai", "https://sandbox.superserve.ai"),
    ("api-usw.superserve.ai", "https://usw-sandbox.superserve.ai"),
    ("api-staging.superserve.ai", "https://staging-sandbox.superserve.ai"),
];

impl Client {
    /// What the platform says of itself; no key is needed for it.
    ///
    /// # Errors
    /// See [`ClientError`]; status 404 from platforms that have no descriptor.
    pub async fn descriptor(&self) -> Result<Descriptor, ClientError> {
        self.call(&Call::new("the platform's descriptor", Method::GET, PATH)).await?.json()
    }

    /// The data plane's base URL, looked up once.
    pub(crate) async fn data_plane(&self) -> Result<&str, ClientError> {
        let found = self.inner.data_plane.get_or_try_init(|| self.discover()).await?;
        Ok(&found.base)
    }

    async fn discover(&self) -> Result<DataPlane, ClientError> {
        let control = Url::parse(self.base_url()).map_err(|_| unusable("the base URL is no URL"))?;
        if let Some(base) = vendor_data_plane(&control) {
            return Ok(DataPlane { base: base.to_owned() });
        }
        let descriptor = match self.descriptor().await {
            Err(error) if error.status() == Some(404) => {
                return Err(unusable("this server does not say where its sandboxes are reached"));
            }
            other => other?,
        };
        let base = parse_base_url("data plane URL", &descriptor.data_plane_url)
            .map_err(|_| unusable("its data_plane_url is no usable URL"))?;
        let data = Url::parse(&base).map_err(|_| unusable("its data_plane_url is no usable URL"))?;
        if control.scheme() == "https" && data.scheme() == "http" && !is_loopback(&data) {
            return Err(unusable("its data_plane_url would send tokens over the network unencrypted"));
        }
        Ok(DataPlane { base })
    }
}

fn vendor_data_plane(control: &Url) -> Option<&'static str> {
    let host = control.host_str()?;
    VENDOR.iter().find(|(api, _)| *api == host).map(|(_, data)| *data)
}

/// The host below which a vendor's platform has its previews.
pub(crate) fn vendor_preview_host(control: &Url) -> Option<&'static str> {
    vendor_data_plane(control)?.strip_prefix("https://")
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn unusable(detail: &str) -> ClientError {
    ClientError::Protocol {
        what: "the platform's descriptor",
        detail: detail.to_owned(),
        may_have_taken_effect: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_hosts_are_derived() {
        let of = |url: &str| vendor_data_plane(&Url::parse(url).unwrap());
        assert_eq!(of("https://api.superserve.ai"), Some("https://sandbox.superserve.ai"));
        assert_eq!(of("https://API-usw.superserve.ai/"), Some("https://usw-sandbox.superserve.ai"));
        assert_eq!(of("https://api-staging.superserve.ai"), Some("https://staging-sandbox.superserve.ai"));
        assert_eq!(of("http://127.0.0.1:8080"), None);
        assert_eq!(of("https://api.superserve.ai.example"), None);
    }
}
