//! Attaches and detaches loop devices.

use crate::{Failed, insist, report, run, text};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs;
use std::path::{Path, PathBuf};

/// A loop device on a file; detached when dropped, after which nothing uses the file.
#[derive(Debug)]
pub struct LoopDevice {
    device: PathBuf,
    /// The file's path as reported by the kernel.
    backing: Option<Vec<u8>>,
}

impl LoopDevice {
    /// Attaches a file; `options` are additional ones for losetup(8).
    ///
    /// # Errors
    /// The message of losetup at the last attempt; or the file does not exist.
    pub fn attach(file: &Path, options: &[&str]) -> Result<Self, String> {
        fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let args = [options, &["--find", "--show", text(file)]].concat();
        // Another program may take the device between the search for a free one and the claim, and
        // a new device may not have a node yet; losetup reports these cases with many different
        // messages.
        let device = insist(|| {
            run("losetup", &args).map_err(|words| {
                make_nodes(Path::new("/sys/block"), Path::new("/dev"));
                Failed::Busy(words)
            })
        })?;
        Ok(Self::attached(device.into()))
    }

    /// A device that a script has attached, such as in another mount namespace; detached when
    /// dropped.
    pub fn attached(device: PathBuf) -> Self {
        let mut attached = Self { device, backing: None };
        attached.backing = attached.backing_file();
        attached
    }

    /// Its path in `/dev`.
    pub fn path(&self) -> &Path {
        &self.device
    }

    /// The file currently attached to the device; `None` if it is free.
    fn backing_file(&self) -> Option<Vec<u8>> {
        let name = self.device.file_name()?;
        fs::read(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()
    }

    /// Detaches it, and waits until the kernel has done so: losetup returns earlier if another
    /// program has the device open.
    fn detach(&self) -> Result<(), String> {
        // Once detached, the device may become another program's at any time.
        insist(|| run("losetup", &["--detach", text(&self.device)]).map_err(Failed::Busy))?;
        insist(|| match self.backing.is_some() && self.backing_file() == self.backing {
            false => Ok(()),
            true => Err(Failed::Busy(format!("{} stays attached", self.device.display()))),
        })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(words) = self.detach() {
            report(&words);
        }
    }
}

/// Creates missing nodes in `dev` for the kernel's loop devices: a container's `/dev` may be an
/// older copy.
fn make_nodes(sys: &Path, dev: &Path) {
    for entry in fs::read_dir(sys).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.as_encoded_bytes().starts_with(b"loop") || dev.join(&name).exists() {
            continue;
        }
        let number = fs::read_to_string(entry.path().join("dev")).unwrap_or_default();
        let parsed = number.trim().split_once(':').map(|(major, minor)| (major.parse(), minor.parse()));
        if let Some((Ok(major), Ok(minor))) = parsed {
            let mode = Mode::RUSR | Mode::WUSR;
            // The next attempt shows whether this helped.
            let _ = mknodat(CWD, dev.join(&name), FileType::BlockDevice, mode, makedev(major, minor));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::can_mount;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    #[test]
    fn a_file_is_attached_once_and_free_afterwards() {
        if !can_mount() {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let listed = || run("losetup", &["--noheadings", "--associated", text(file.path())]).unwrap();
        for _ in 0..20 {
            let device = LoopDevice::attach(file.path(), &["--read-only"]).unwrap();
            assert!(listed().starts_with(text(device.path())), "{}", listed());
            assert_eq!(run("blockdev", &["--getro", text(device.path())]).unwrap(), "1");
            drop(device);
            assert_eq!(listed(), "");
        }
    }

    #[test]
    fn a_device_that_is_open_elsewhere_is_waited_for() {
        if !can_mount() {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let device = LoopDevice::attach(file.path(), &[]).unwrap();
        // The shell reports that it has the device open, and closes it once losetup has been asked
        // to detach.
        let path = text(device.path()).to_owned();
        let script =
            format!("exec 3<{path}; echo; while ! losetup -ln -O AUTOCLEAR {path} | grep -q 1; do :; done");
        let mut holder = std::process::Command::new("sh");
        holder.args(["-c", &script]).env("PATH", "/bin:/usr/bin:/sbin:/usr/sbin");
        let mut holder = holder.stdout(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        drop(device);
        let listed = run("losetup", &["--noheadings", "--associated", text(file.path())]).unwrap();
        assert_eq!(listed, "", "its file is free as soon as it is dropped");
        assert!(holder.wait().unwrap().success());
    }

    #[test]
    fn a_file_that_is_not_there_fails_at_once_and_in_words() {
        let missing = LoopDevice::attach(Path::new("/nowhere/file"), &[]).unwrap_err();
        assert!(missing.contains("No such file"), "{missing}");
    }

    #[test]
    fn nodes_that_are_missing_are_made() {
        if !can_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (sys, dev) = (dir.path().join("sys"), dir.path().join("dev"));
        for (name, number) in [("loop3", "7:3\n"), ("loop260", "7:260\n"), ("vda", "254:0\n")] {
            fs::create_dir_all(sys.join(name)).unwrap();
            fs::write(sys.join(name).join("dev"), number).unwrap();
        }
        fs::create_dir(&dev).unwrap();
        fs::write(dev.join("loop3"), "").unwrap();
        make_nodes(&sys, &dev);
        let made = fs::metadata(dev.join("loop260")).unwrap();
        assert!(made.file_type().is_block_device());
        assert_eq!(made.rdev(), makedev(7, 260));
        assert!(fs::metadata(dev.join("loop3")).unwrap().is_file() && !dev.join("vda").exists());
    }
}
