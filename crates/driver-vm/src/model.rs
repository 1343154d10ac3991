//! Which model of machine QEMU emulates. `q35` means another one in each release, and a checkpoint fits only the one it was written
//! on. So machines are started with the versioned name, which later releases of QEMU know for years, and a checkpoint says
//! which that was.
//!
//! Nor does it fit another processor than the one it was written on: QEMU's own and the host's differ, and a guest that
//! wakes up on the other may use what is not there.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use driver::{DriverError, process};
use driver_port::limited;

use crate::command::Acceleration;
use crate::files;

/// The file in a checkpoint, and beside a machine that runs.
pub(crate) const FILE: &str = "model";
/// The file that says whose the processor was.
const ACCELERATION: &str = "acceleration";
/// What checkpoints were written on before they said it.
const UNSAID: &str = "q35";
/// The longest has eight bytes.
const MAX_NAME: u64 = 64;
/// A list of names.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// The present model, in full.
pub(crate) async fn of(qemu: &Path) -> Result<String, DriverError> {
    let qemu = process::find(qemu)?;
    let listing = async {
        tokio::process::Command::new(&qemu)
            .args(["-machine", "help"])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(DriverError::io("ask QEMU for its machines"))
    };
    let said = limited("asking QEMU for its machines", LIST_LIMIT, listing).await?;
    find(&String::from_utf8_lossy(&said.stdout)).ok_or_else(|| DriverError::Engine {
        what: "asking QEMU for its machines",
        detail: "it knows none that is called q35".to_owned(),
    })
}

/// What a list says that `q35` means.
fn find(list: &str) -> Option<String> {
    let line = list.lines().find(|line| line.split_ascii_whitespace().next() == Some("q35"))?;
    let model = line.split("(alias of ").nth(1)?.split(')').next()?;
    is_model(model).then(|| model.to_owned())
}

/// The one that a directory names.
pub(crate) fn read(dir: &Path) -> Result<String, DriverError> {
    let named = match std::fs::read_to_string(dir.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(UNSAID.to_owned()),
        named => named.map_err(DriverError::io("read which machine it was"))?,
    };
    if is_model(&named) {
        return Ok(named);
    }
    Err(DriverError::Engine {
        what: "reading which machine it was",
        detail: "it is no model of QEMU's".to_owned(),
    })
}

/// Says in a directory which machine it is.
pub(crate) fn write(dir: &Path, model: &str, acceleration: Acceleration) -> io::Result<[File; 2]> {
    let make = |name: &str, text: &str| {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(dir.join(name))?;
        file.write_all(text.as_bytes())?;
        Ok::<_, io::Error>(file)
    };
    Ok([make(FILE, model)?, make(ACCELERATION, acceleration.as_str())?])
}

/// Whose processor it was; emulated where it is not said.
pub(crate) fn acceleration(dir: &Path) -> Result<Acceleration, DriverError> {
    let file = match files::open(&dir.join(ACCELERATION), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Acceleration::Emulated),
        file => file.map_err(DriverError::io("read whose processor it was"))?,
    };
    let mut named = String::new();
    file.take(MAX_NAME).read_to_string(&mut named).map_err(DriverError::io("read whose processor it was"))?;
    [Acceleration::Emulated, Acceleration::Kvm].into_iter().find(|one| one.as_str() == named).ok_or_else(
        || DriverError::Engine {
            what: "reading whose processor it was",
            detail: "it is no setting of ours".to_owned(),
        },
    )
}

/// Refuses what was written on another processor.
pub(crate) fn fits(dir: &Path, present: Acceleration) -> Result<(), DriverError> {
    let written = acceleration(dir)?;
    if written == present {
        return Ok(());
    }
    Err(DriverError::OtherSetting { needs: format!("vm_acceleration = \"{}\"", written.as_str()) })
}

/// It becomes a part of an argument in which commas and equals signs mean something.
fn is_model(name: &str) -> bool {
    name.strip_prefix("pc-q35-").is_some_and(|version| {
        (1..=16).contains(&version.len()) && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    }) || name == UNSAID
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alias_is_followed() {
        let list = "Supported machines are:\nq35-like  No (alias of x)\n\
                    q35                  Standard PC (Q35 + ICH9, 2009) (alias of pc-q35-7.2)\n\
                    pc-q35-7.2           Standard PC (Q35 + ICH9, 2009)\n";
        assert_eq!(find(list).as_deref(), Some("pc-q35-7.2"));
        for list in ["", "q35", "q35 (alias of )", "q35 (alias of pc-q35-7.2,dump-guest-core=on)"] {
            assert_eq!(find(list), None, "{list}");
        }
    }

    #[test]
    fn a_checkpoint_goes_on_under_the_setting_it_was_written_under() {
        use Acceleration::{Emulated, Kvm};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // One of a former release.
        assert!(fits(dir.path(), Emulated).is_ok() && fits(dir.path(), Kvm).is_err());
        for (written, other, name) in [(Emulated, Kvm, "emulated"), (Kvm, Emulated, "kvm")] {
            std::fs::create_dir(at(name)).unwrap();
            write(&at(name), "pc-q35-7.2", written).unwrap();
            assert!(write(&at(name), "pc-q35-7.2", other).is_err(), "it says it already");
            assert_eq!(read(&at(name)).unwrap(), "pc-q35-7.2");
            fits(&at(name), written).unwrap();
            let refused = fits(&at(name), other).unwrap_err();
            assert!(matches!(&refused, DriverError::OtherSetting { .. }), "{refused}");
            assert!(refused.to_string().contains(&format!("vm_acceleration = \"{name}\"")), "{refused}");
        }
        for bad in ["", "Kvm", "kvm\n", &"kvm".repeat(1_000)] {
            std::fs::write(at("kvm").join(ACCELERATION), bad).unwrap();
            assert!(acceleration(&at("kvm")).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_checkpoint_says_which_it_was() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), "q35");
        std::fs::write(dir.path().join(FILE), "pc-q35-7.2").unwrap();
        assert_eq!(read(dir.path()).unwrap(), "pc-q35-7.2");
        for bad in ["", "microvm", "pc-q35-7.2,usb=on", "pc-q35-7.2\n", "pc-q35-", "pc-q35-12345678901234567"]
        {
            std::fs::write(dir.path().join(FILE), bad).unwrap();
            assert!(read(dir.path()).is_err(), "{bad:?}");
        }
    }
}
