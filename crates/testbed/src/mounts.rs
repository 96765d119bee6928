//! Mounts of images and in memory, undone when dropped.

use crate::{Failed, LoopDevice, insist, report, run, text};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A kernel mount; undone when dropped, after which its image may be changed.
#[derive(Debug)]
pub struct Mount {
    at: PathBuf,
    /// The mount's own device, detached after unmounting.
    device: Option<LoopDevice>,
}

impl Mount {
    /// Mounts an image at a folder, which is created if missing; `options` as for `mount -o`.
    ///
    /// # Panics
    /// It cannot be mounted: the message of mount(8) or losetup(8).
    #[track_caller]
    pub fn new(image: &Path, at: &Path, options: &str) -> Self {
        Self::try_new(image, at, options).unwrap_or_else(|words| panic!("{words}"))
    }

    /// Like [`Mount::new`], but returns an error.
    ///
    /// # Errors
    /// It cannot be mounted: the message of mount(8) or losetup(8).
    pub fn try_new(image: &Path, at: &Path, options: &str) -> Result<Self, String> {
        std::fs::create_dir_all(at).map_err(|error| format!("{}: {error}", at.display()))?;
        let is_read_only = options.split(',').any(|option| option == "ro");
        let device = LoopDevice::attach(image, if is_read_only { &["--read-only"] } else { &[] })?;
        mount(&["-o", options, text(device.path()), text(at)])?;
        Ok(Self { at: at.to_owned(), device: Some(device) })
    }

    /// Like [`Mount::new`]. If the kernel refuses a volume with blocks larger than a page, as most
    /// do, prints that and returns `None`.
    ///
    /// # Panics
    /// It cannot be mounted for another reason.
    #[track_caller]
    pub fn unless_blocks_are_too_large(image: &Path, at: &Path, options: &str) -> Option<Self> {
        match Self::try_new(image, at, options) {
            Ok(mount) => Some(mount),
            Err(words)
                if block_bytes(image).is_some_and(|bytes| bytes > rustix::param::page_size() as u64) =>
            {
                println!("not mountable by this kernel: {words}");
                None
            }
            Err(words) => panic!("{words}"),
        }
    }

    /// Whether the kernel can mount a fresh mke2fs volume, tested by mounting a copy. If not,
    /// prints that: many kernels are built without some feature, such as `quota`.
    ///
    /// # Panics
    /// No loop device is available.
    #[track_caller]
    pub fn is_supported(fresh: &Path) -> bool {
        let copy = fresh.with_extension("fresh");
        std::fs::copy(fresh, &copy).unwrap_or_else(|error| panic!("{}: {error}", fresh.display()));
        let mounted = Self::try_new(&copy, &fresh.with_extension("fresh-mounted"), "rw");
        let refused = mounted.map(drop).err();
        let _ = std::fs::remove_file(&copy);
        match &refused {
            Some(words) if words.contains("wrong fs type") => {
                println!("not mountable by this kernel: {words}")
            }
            Some(words) => panic!("{words}"),
            None => {}
        }
        refused.is_none()
    }

    /// Mounts the volume of type `fs` that a loop device now holds, which may be a different one
    /// than at the last mount; the device stays attached.
    ///
    /// # Errors
    /// The kernel's error, from mount(2).
    pub fn of_device(device: &LoopDevice, at: &Path, fs: &str) -> Result<Self, String> {
        // The device's cached pages are only dropped by its last user, which may have been a
        // program that scans all disks.
        let opened = std::fs::File::open(device.path()).map_err(|error| error.to_string())?;
        fadvise(&opened, 0, None, Advice::DontNeed).map_err(|error| error.to_string())?;
        drop(opened);
        insist(|| {
            rustix::mount::mount(device.path(), at, fs, MountFlags::empty(), None).map_err(|error| {
                let words = error.to_string();
                if error == Errno::BUSY { Failed::Busy(words) } else { Failed::ForGood(words) }
            })
        })?;
        Ok(Self { at: at.to_owned(), device: None })
    }

    /// Mounts an in-memory file system at an existing folder; `options` as for `mount -o`.
    ///
    /// # Panics
    /// It cannot be mounted: the message of mount(8).
    #[track_caller]
    pub fn tmpfs(at: &Path, options: &str) -> Self {
        mount(&["-t", "tmpfs", "-o", options, "tmpfs", text(at)]).unwrap_or_else(|words| panic!("{words}"));
        Self { at: at.to_owned(), device: None }
    }

    /// Mounts an overlay at an existing folder; `options` as for `mount -o`.
    ///
    /// # Errors
    /// The message of mount(8), also if the kernel has no overlayfs.
    pub fn overlay(at: &Path, options: &str) -> Result<Self, String> {
        mount(&["-t", "overlay", "-o", options, "overlay", text(at)])?;
        Ok(Self { at: at.to_owned(), device: None })
    }

    /// The root of the mount.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// The mount's own loop device.
    pub fn device(&self) -> Option<&Path> {
        self.device.as_ref().map(LoopDevice::path)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(words) = insist(|| leave(&self.at)) {
            // Detach it, so that deleting the folder afterwards does not delete the mount's
            // contents.
            let _ = unmount(&self.at, UnmountFlags::DETACH);
            report(&words);
        }
    }
}

/// Block size of an ext volume, from its superblock.
fn block_bytes(image: &Path) -> Option<u64> {
    let mut start = [0; 64];
    std::fs::File::open(image).ok()?.read_exact_at(&mut start, 1024).ok()?;
    let log = u32::from_le_bytes(start[24..28].try_into().expect("four bytes"));
    (start[56..58] == [0x53, 0xef] && log <= 6).then_some(1024 << log)
}

fn mount(args: &[&str]) -> Result<(), String> {
    insist(|| match run("mount", args) {
        Ok(_) => Ok(()),
        // Another program briefly has the device open exclusively.
        Err(words) if words.contains("already mounted or mount point busy") => Err(Failed::Busy(words)),
        Err(words) => Err(Failed::ForGood(words)),
    })
}

/// Unmounts. A process being started holds copies of this one's open files until it runs its
/// program, so a file that was closed may keep the mount busy for a moment.
fn leave(at: &Path) -> Result<(), Failed> {
    unmount(at, UnmountFlags::empty()).map_err(|error| {
        let words = format!("umount {}: {error}", at.display());
        if error == Errno::BUSY { Failed::Busy(words) } else { Failed::ForGood(words) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{can_mount, have};

    fn volume(dir: &Path, options: &[&str]) -> Option<PathBuf> {
        if !have(&["mke2fs"]) || !can_mount() {
            return None;
        }
        let image = dir.join("image");
        std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        run("mke2fs", &[&["-q", "-F"], options, &[text(&image)]].concat()).unwrap();
        Some(image)
    }

    #[test]
    fn a_volume_is_mounted_again_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let Some(image) = volume(dir.path(), &[]) else { return };
        let at = dir.path().join("at");
        for n in 0..20 {
            let mount = Mount::new(&image, &at, if n % 2 == 0 { "rw" } else { "ro" });
            assert_eq!(std::fs::write(mount.path().join("file"), [n]).is_ok(), n % 2 == 0);
            assert_eq!(std::fs::read(mount.path().join("file")).unwrap(), [n & !1]);
            drop(mount);
            assert!(!at.join("file").exists());
            let left = run("losetup", &["--noheadings", "--associated", text(&image)]).unwrap();
            assert_eq!(left, "", "the image is free");
        }
    }

    #[test]
    fn a_device_is_mounted_with_what_its_file_holds_now() {
        let dir = tempfile::tempdir().unwrap();
        let Some(image) = volume(dir.path(), &["-t", "ext4", "-b", "1024"]) else { return };
        let at = dir.path().join("at");
        std::fs::create_dir(&at).unwrap();
        let empty = std::fs::read(&image).unwrap();
        let device = LoopDevice::attach(&image, &[]).unwrap();
        // Keeps the device's pages cached, like programs that scan disks.
        let look = std::fs::File::open(device.path()).unwrap();
        for n in 0..3 {
            let mount = Mount::of_device(&device, &at, "ext4").unwrap();
            assert!(!at.join("file").exists(), "mount {n}");
            std::fs::write(at.join("file"), "x").unwrap();
            drop(mount);
            std::fs::write(&image, &empty).unwrap();
        }
        drop(look);
    }

    #[test]
    fn a_mount_that_is_busy_for_a_moment_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        if !can_mount() {
            return;
        }
        let at = dir.path().join("at");
        std::fs::create_dir(&at).unwrap();
        let mount = Mount::tmpfs(&at, "size=1m");
        let mut holder = Some(std::fs::File::create(at.join("file")).unwrap());
        let mut tries = 0;
        let left = insist(|| {
            let result = leave(&at);
            tries += 1;
            if tries == 3 {
                holder = None;
            }
            result
        });
        left.unwrap();
        assert_eq!(tries, 4);
        let gone = insist(|| leave(&at)).unwrap_err();
        assert!(gone.starts_with("umount "), "a failure for good: {gone}");
        std::mem::forget(mount);
    }

    #[test]
    fn blocks_larger_than_a_page_are_no_failure_and_damage_is() {
        let dir = tempfile::tempdir().unwrap();
        let Some(image) = volume(dir.path(), &["-b", "65536"]) else { return };
        let at = dir.path().join("at");
        // The kernel may accept or refuse this; it must not panic.
        drop(Mount::unless_blocks_are_too_large(&image, &at, "ro"));
        let Some(image) = volume(dir.path(), &["-b", "1024"]) else { return };
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        file.write_all_at(&[0xff; 4], 1024 + 0x60).unwrap();
        let damaged = std::panic::catch_unwind(|| Mount::unless_blocks_are_too_large(&image, &at, "ro"));
        let words = damaged.unwrap_err().downcast::<String>().unwrap();
        assert!(words.starts_with("mount "), "{words}");
    }

    #[test]
    fn a_volume_of_mke2fs_is_supported_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let Some(image) = volume(dir.path(), &[]) else { return };
        let before = std::fs::read(&image).unwrap();
        assert!(Mount::is_supported(&image));
        assert!(std::fs::read(&image).unwrap() == before);
        std::fs::write(&image, vec![0; 1 << 20]).unwrap();
        assert!(!Mount::is_supported(&image), "there is none");
    }

    #[test]
    fn a_refusal_has_the_words_of_mount() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, vec![0; 1 << 20]).unwrap();
        if !can_mount() {
            return;
        }
        let words = Mount::try_new(&image, &dir.path().join("at"), "ro").unwrap_err();
        assert!(words.contains("wrong fs type"), "{words}");
        let left = run("losetup", &["--noheadings", "--associated", text(&image)]).unwrap();
        assert_eq!(left, "", "the image is free");
    }
}
