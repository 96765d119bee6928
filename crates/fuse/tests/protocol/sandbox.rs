//! What a server in a sandbox can no longer do.

use extant_fuse::{ImageIs, confine_calls, confine_files};
use extant_rt::Rt;
use std::fs::{self, File};
use std::io::{Read, Result};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

/// Runs a test in a separate process, because it gives up what other tests need. Returns a
/// directory in that process, and `None` in this one.
fn alone(test: &str) -> Option<PathBuf> {
    const ALONE: &str = "EXTANT_TEST_ALONE";
    if let Some(dir) = std::env::var_os(ALONE) {
        return Some(dir.into());
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = format!("sandbox::{test}");
    command.args([&*test, "--exact", "--nocapture", "--test-threads=1"]).env(ALONE, dir.path());
    let ran = command.output().unwrap();
    let told = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    assert!(ran.status.success() && told.contains("1 passed"), "{told}");
    None
}

#[track_caller]
fn refused<T>(done: Result<T>, errno: i32) {
    assert_eq!(done.err().and_then(|error| error.raw_os_error()), Some(errno));
}

#[test]
fn a_server_can_do_nothing_but_serve() {
    let Some(dir) = alone("a_server_can_do_nothing_but_serve") else { return };
    let path = dir.join("image");
    let image = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut random = File::open("/dev/urandom").unwrap();
    confine_calls(ImageIs::At(&path), None).unwrap();
    refused(File::open("/proc/self/status"), libc::EPERM);
    refused(File::open(&path), libc::EPERM);
    refused(File::create(dir.join("new")), libc::EPERM);
    refused(fs::remove_file(&path), libc::EPERM);
    refused(fs::metadata(&path), libc::EPERM);
    refused(fs::read_dir("/"), libc::EPERM);
    refused(TcpStream::connect(address), libc::EPERM);
    refused(UnixStream::pair(), libc::EPERM);
    refused(Command::new("/bin/true").status(), libc::EPERM);
    refused(rustix::process::test_kill_process(rustix::process::getpid()).map_err(Into::into), libc::EPERM);
    // Open files, memory and threads can be used.
    image.write_all_at(&[7; 10_000], 0).unwrap();
    image.sync_all().unwrap();
    assert_eq!(image.metadata().unwrap().len(), 10_000);
    let rt = Rt::real(extant_rt::RealConfig::default());
    let read = rt.spawn_blocking("read", move || {
        let mut bytes = vec![0; 4 << 20];
        random.read_exact(&mut bytes).map(|()| bytes.iter().any(|byte| *byte != 0))
    });
    assert!(rt.block_on(read).unwrap().unwrap().unwrap());
}

#[test]
fn an_image_is_opened_without_other_files() {
    let Some(dir) = alone("an_image_is_opened_without_other_files") else { return };
    let (path, other) = (dir.join("image"), dir.join("other"));
    fs::write(&path, "image").unwrap();
    fs::write(&other, "other").unwrap();
    if !confine_files(ImageIs::At(&path)).unwrap() {
        println!("the kernel has no landlock");
        return;
    }
    File::options().read(true).write(true).open(&path).unwrap();
    File::open("/proc/self/mountinfo").unwrap();
    refused(File::open(&other), libc::EACCES);
    refused(File::create(dir.join("new")), libc::EACCES);
    refused(fs::remove_file(&path), libc::EACCES);
    refused(Command::new("/bin/true").status(), libc::EACCES);
}
