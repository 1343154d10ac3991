//! The documents of an image, as far as they matter here, and the choice among them. No I/O. OCI's and Docker's forms
//! have the same fields; only their media types differ.

use std::collections::BTreeMap;

use domain::{EnvVars, RuntimeDefaults};
use serde::Deserialize;

/// What a registry is asked for, and all that is understood.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// Most layers of one image: the kernel takes mount options of one page, and other engines stop at 127 as well.
const MAX_LAYERS: usize = 127;
/// Most entries of an index that are looked at.
const MAX_ENTRIES: usize = 1_000;

/// This machine, in the words of images.
pub(crate) const OS: &str = "linux";
pub(crate) const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// The digest of a blob or manifest: 64 lowercase hex digits of a SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Digest(String);

impl Digest {
    /// As in URLs, with the algorithm.
    pub(crate) fn with_algorithm(&self) -> String {
        format!("sha256:{}", self.0)
    }

    /// The digits alone, which is how layers are named.
    pub(crate) fn hex(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.strip_prefix("sha256:") {
            Some(hex) if crate::store::is_digest(hex) => Ok(Self(hex.to_owned())),
            _ => Err("a digest that is no sha256".to_owned()),
        }
    }
}

/// Points to a blob or another document.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    /// Bytes.
    pub(crate) size: u64,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// A document fetched by name.
#[derive(Debug)]
pub(crate) enum Document {
    Index(Index),
    Manifest(Manifest),
}

#[derive(Debug, Deserialize)]
pub(crate) struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// The configuration of an image.
#[derive(Debug, Deserialize)]
pub(crate) struct ImageConfig {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    config: Option<Process>,
    rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<Digest>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Process {
    #[serde(default)]
    env: Option<Vec<String>>,
    #[serde(default)]
    working_dir: Option<String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    entrypoint: Option<Vec<String>>,
    #[serde(default)]
    cmd: Option<Vec<String>>,
}

/// Reads a document. Its own fields decide what it is; the registry's word for it is not needed.
pub(crate) fn parse(body: &[u8]) -> Result<Document, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape {
        schema_version: u32,
        #[serde(default)]
        manifests: Option<serde::de::IgnoredAny>,
        #[serde(default)]
        layers: Option<serde::de::IgnoredAny>,
    }
    let shape: Shape = read(body)?;
    match shape {
        Shape { schema_version: 2, manifests: Some(_), layers: None } => {
            let mut index: Index = read(body)?;
            index.manifests.truncate(MAX_ENTRIES);
            Ok(Document::Index(index))
        }
        Shape { schema_version: 2, manifests: None, layers: Some(_) } => {
            let manifest: Manifest = read(body)?;
            if manifest.layers.len() > MAX_LAYERS {
                return Err(format!("it has more than {MAX_LAYERS} layers"));
            }
            Ok(Document::Manifest(manifest))
        }
        Shape { schema_version: 2, .. } => {
            Err("its manifest is neither an image nor an index of images".to_owned())
        }
        Shape { schema_version, .. } => {
            Err(format!("its manifest has the outdated schema version {schema_version}; push it again"))
        }
    }
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("its manifest cannot be read: {error}"))
}

impl Index {
    /// What may hold the image for this machine, best first: what says so, then what says nothing.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = &Descriptor> {
        let exact = self.manifests.iter().filter(|entry| {
            // v1 is the plain processor; programs for v2 and up might not run.
            entry.platform.as_ref().is_some_and(|platform| {
                fits(&platform.os, &platform.architecture)
                    && (ARCHITECTURE != "amd64"
                        || matches!(platform.variant.as_deref(), None | Some("" | "v1")))
            })
        });
        exact.chain(self.manifests.iter().filter(|entry| entry.platform.is_none()))
    }

    /// The platforms it names, for a message.
    pub(crate) fn platforms(&self) -> Vec<String> {
        self.manifests
            .iter()
            .filter_map(|entry| Some(entry.platform.as_ref()?.to_string()))
            .take(20)
            .collect()
    }
}

fn fits(os: &str, architecture: &str) -> bool {
    os == OS && architecture == ARCHITECTURE
}

impl ImageConfig {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(body).map_err(|error| format!("its configuration cannot be read: {error}"))
    }

    pub(crate) fn fits_this_machine(&self) -> bool {
        fits(&self.os, &self.architecture)
    }

    pub(crate) fn platform(&self) -> String {
        format!("{}/{}", self.os, self.architecture)
    }

    /// Digests of the unpacked layers, lowest first.
    pub(crate) fn diff_ids(&self) -> &[Digest] {
        &self.rootfs.diff_ids
    }

    /// What the image runs, for a shell; `None` when there is nothing, or nothing that can be run.
    pub(crate) fn command(&self) -> Option<String> {
        let process = self.config.as_ref()?;
        let words: Vec<_> = [&process.entrypoint, &process.cmd].into_iter().flatten().flatten().collect();
        let quoted = words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''")));
        let line = quoted.collect::<Vec<_>>().join(" ");
        let fits = !line.is_empty() && line.len() <= domain::MAX_COMMAND_BYTES && !line.contains('\0');
        fits.then(|| format!("exec {line}"))
    }

    /// What processes start with.
    pub(crate) fn defaults(self) -> Result<RuntimeDefaults, String> {
        let process = self.config.unwrap_or_default();
        let mut env = BTreeMap::new();
        for pair in process.env.unwrap_or_default() {
            let (name, value) =
                pair.split_once('=').ok_or("its configuration has a variable without a value")?;
            env.insert(name.to_owned(), value.to_owned());
        }
        // The same bounds as for everybody else's variables.
        let env = EnvVars::new(env).map_err(|problem| format!("its variables are refused: {problem}"))?;
        let set = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (workdir, user) = (set(process.working_dir), set(process.user));
        for text in [&workdir, &user].into_iter().flatten() {
            if text.len() > 4096 || text.chars().any(char::is_control) {
                return Err("its working directory or user is not a name".to_owned());
            }
        }
        // Some builders leave the first slash out; other engines take it as meant.
        let workdir = workdir.map(|path| if path.starts_with('/') { path } else { format!("/{path}") });
        Ok(RuntimeDefaults { env: env.as_map().clone(), workdir, user, ..RuntimeDefaults::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

    fn index(entries: &str) -> Index {
        match parse(format!(r#"{{"schemaVersion":2,"manifests":[{entries}]}}"#).as_bytes()).unwrap() {
            Document::Index(index) => index,
            Document::Manifest(_) => panic!("an index"),
        }
    }

    #[test]
    fn the_machine_s_own_image_is_chosen() {
        let entry = |size: u32, platform: &str| {
            format!(r#"{{"mediaType":"x","digest":"sha256:{HEX}","size":{size}{platform}}}"#)
        };
        let of = |arch: &str| format!(r#","platform":{{"os":"linux","architecture":"{arch}"}}"#);
        let v3 = format!(r#","platform":{{"os":"linux","architecture":"{ARCHITECTURE}","variant":"v3"}}"#);
        let entries =
            [entry(1, &of("s390x")), entry(2, &v3), entry(3, ""), entry(4, &of(ARCHITECTURE))].join(",");
        let index = index(&entries);
        let sizes: Vec<u64> = index.candidates().map(|entry| entry.size).collect();
        if ARCHITECTURE == "amd64" {
            assert_eq!(sizes, [4, 3]);
        }
        assert_eq!(index.platforms()[0], "linux/s390x");
    }

    #[test]
    fn documents_of_other_kinds_are_named() {
        let bad = |body: &str| parse(body.as_bytes()).map(|_| ()).unwrap_err();
        assert!(bad(r#"{"schemaVersion":1,"fsLayers":[]}"#).contains("outdated schema"));
        assert!(bad(r#"{"schemaVersion":2}"#).contains("neither"));
        assert!(bad("<html>").contains("cannot be read"));
        let many = vec![format!(r#"{{"digest":"sha256:{HEX}","size":1}}"#); MAX_LAYERS + 1].join(",");
        let config = format!(r#"{{"digest":"sha256:{HEX}","size":1}}"#);
        let body = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{many}]}}"#);
        assert!(bad(&body).contains("127 layers"));
        for digest in ["sha256:../../etc", "sha512:abc", "", &format!("sha256:{}", HEX.to_uppercase())] {
            let body =
                format!(r#"{{"schemaVersion":2,"config":{{"digest":"{digest}","size":1}},"layers":[]}}"#);
            assert!(bad(&body).contains("no sha256"), "{digest}");
        }
    }

    #[test]
    fn defaults_come_from_the_configuration() {
        let read = |config: &str| {
            let body = format!(
                r#"{{"os":"linux","architecture":"{ARCHITECTURE}","rootfs":{{"type":"layers","diff_ids":[]}},"config":{config}}}"#
            );
            ImageConfig::parse(body.as_bytes()).unwrap().defaults()
        };
        let defaults =
            read(r#"{"Env":["PATH=/bin","A=b=c"],"WorkingDir":"/srv","User":"1000:50","Volumes":null}"#)
                .unwrap();
        assert_eq!(defaults.env["A"], "b=c");
        assert_eq!(defaults.workdir.as_deref(), Some("/srv"));
        assert_eq!(defaults.user.as_deref(), Some("1000:50"));
        let command = |config: &str| {
            let body = format!(r#"{{"rootfs":{{}},"config":{config}}}"#);
            ImageConfig::parse(body.as_bytes()).unwrap().command()
        };
        assert_eq!(
            command(r#"{"Entrypoint":["/bin/it's"],"Cmd":["a b","$C"]}"#).as_deref(),
            Some(r"exec '/bin/it'\''s' 'a b' '$C'")
        );
        assert_eq!(command(r#"{"Entrypoint":null,"Cmd":["x"]}"#).as_deref(), Some("exec 'x'"));
        assert_eq!([command("{}"), command("null"), command(r#"{"Cmd":["a\u0000"]}"#)], [None, None, None]);
        assert_eq!(read("null").unwrap(), RuntimeDefaults::default());
        assert_eq!(read(r#"{"WorkingDir":"app"}"#).unwrap().workdir.as_deref(), Some("/app"));
        assert_eq!(read(r#"{"Env":null,"User":"","WorkingDir":""}"#).unwrap(), RuntimeDefaults::default());
        for bad in
            [r#"{"Env":["A"]}"#, r#"{"Env":["=x"]}"#, r#"{"WorkingDir":"a\u0000"}"#, r#"{"User":"a\nb"}"#]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(data in ".{0,200}") {
            let _ = parse(data.as_bytes());
            let _ = ImageConfig::parse(data.as_bytes()).map(ImageConfig::defaults);
            let _ = crate::oci::auth::Challenge::parse(&data);
            let _ = crate::oci::auth::Challenge::parse(&format!("Bearer realm={data}"));
        }
    }
}
