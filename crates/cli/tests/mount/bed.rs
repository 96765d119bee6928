//! A volume, its directory and the server between them.

use crate::testbed::{Ran, fsck, have, mke2fs, run};
use rustix::process::{Pid, PidfdFlags};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Whether this process can mount at all; prints that the test is skipped if not.
pub(crate) fn can_mount() -> bool {
    let opened = fs::File::options().read(true).write(true).open("/dev/fuse");
    let possible = opened.is_ok() && (rustix::process::geteuid().is_root() || have("fusermount3"));
    if !possible {
        println!("skipped: mounting needs /dev/fuse, and root or fusermount3");
    }
    possible && have("mke2fs")
}

/// Runs `extant` and waits for it.
pub(crate) fn extant(args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
    command.arg("--quiet").args(args).stdin(Stdio::null()).output().unwrap().into()
}

/// A mounted volume.
pub(crate) struct Bed {
    _dir: tempfile::TempDir,
    pub(crate) image: PathBuf,
    pub(crate) at: PathBuf,
    mounted: bool,
}

impl Bed {
    /// Makes a volume with mke2fs and mounts it.
    pub(crate) fn new(size: &str, mke2fs_options: &[&str], options: &str) -> Self {
        let mut bed = Self::unmounted(size, mke2fs_options);
        bed.mount(options);
        bed
    }

    /// Makes a volume and a directory.
    pub(crate) fn unmounted(size: &str, mke2fs_options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
        fs::create_dir(&at).unwrap();
        mke2fs(&image, size, &[&["-t", "ext4"], mke2fs_options].concat());
        Self { _dir: dir, image, at, mounted: false }
    }

    pub(crate) fn try_mount(&mut self, options: &str) -> Ran {
        let options = if options.is_empty() { vec![] } else { vec!["-o", options] };
        let args = [&["mount"], &options[..], &[text(&self.image), text(&self.at)]].concat();
        let ran = extant(&args);
        self.mounted |= ran.code == Some(0);
        ran
    }

    #[track_caller]
    pub(crate) fn mount(&mut self, options: &str) {
        let ran = self.try_mount(options);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    }

    /// Unmounts; the volume must then be clean and sound.
    #[track_caller]
    pub(crate) fn umount(&mut self) {
        let mut ran = extant(&["umount", text(&self.at)]);
        // A program that another test starts holds copies of this one's open files until its exec.
        for _ in 0..50 {
            if !ran.stderr.contains("in use; end the programs") {
                break;
            }
            ran = extant(&["umount", text(&self.at)]);
        }
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
        self.mounted = false;
        fsck(&self.image);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// The process number of the server.
    pub(crate) fn server(&self) -> Pid {
        let mut value = [0; 16];
        let read = rustix::fs::getxattr(&self.at, "system.extant.server", &mut value).unwrap();
        let pid: i32 = std::str::from_utf8(&value[..read]).unwrap().parse().unwrap();
        Pid::from_raw(pid).unwrap()
    }

    /// The server's process outside of its sandbox.
    pub(crate) fn monitor(&self) -> OwnedFd {
        let server = self.server().as_raw_nonzero();
        let list = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap();
        let threads = fs::read_dir(format!("/proc/{server}/task")).unwrap();
        let children: String = threads.map(|thread| list(thread.unwrap())).collect();
        let pid = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap()
    }

    /// Kills the server, and waits until it has ended.
    pub(crate) fn kill(&self) {
        let pid = self.server();
        let server = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        wait_for_end(&server);
    }

    /// Runs a shell script in the mounted directory.
    #[track_caller]
    pub(crate) fn shell(&self, script: &str) -> String {
        let script = format!("set -e; cd '{}'; {script}", self.at.display());
        run("sh", &["-c", &script])
    }

    /// Runs a Python program in the mounted directory.
    #[track_caller]
    pub(crate) fn python(&self, program: &str) -> String {
        let program = format!("import os\nos.chdir({:?})\n{program}", text(&self.at));
        run("python3", &["-c", &program])
    }
}

/// Waits until a process has ended.
pub(crate) fn wait_for_end(process: &OwnedFd) {
    let mut wait = [rustix::event::PollFd::new(process, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut wait, None).unwrap();
}

impl Drop for Bed {
    fn drop(&mut self) {
        if self.mounted {
            // After a failure; the next test has a directory of its own.
            let _ = extant(&["umount", "--lazy", text(&self.at)]);
        }
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
