//! The programs in `examples` do what they say.

mod bed;

use bed::{fsck, image, writable};
use extant::{OpenOptions, Volume};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An example; cargo builds them next to the folder of this test.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    Command::new(tests.parent().unwrap().join("examples").join(name))
}

/// What an example prints if it succeeds.
fn printed(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn read(image: &Path, path: &str) -> Vec<u8> {
    Volume::open(image, &OpenOptions::new()).unwrap().read(path).unwrap()
}

#[test]
fn examples_read_edit_walk_and_write() {
    let dir = tempfile::tempdir().unwrap();
    let disk = image(dir.path());
    let volume = writable(&disk);
    volume.root().create_dir("etc").unwrap();
    volume.close().unwrap();
    for line in ["127.0.0.1 localhost", "10.0.0.1 gateway"] {
        printed(example("edit").arg(&disk).args(["etc/hosts", line]));
    }
    let hosts = "127.0.0.1 localhost\n10.0.0.1 gateway\n";
    assert_eq!(printed(example("read").arg(&disk).arg("/etc/hosts")), hosts);
    let log = printed(example("writers").arg(&disk));
    assert_eq!(log.lines().filter(|line| line.ends_with("is there")).count(), 4, "{log}");
    assert_eq!(read(&disk, "/parts/3"), [3; 100_000]);
    let listed = printed(example("walk").arg(&disk));
    assert!(listed.lines().any(|line| line == format!("{:>12} etc/hosts", hosts.len())), "{listed}");
    assert!(listed.ends_with(&format!("6 files, {} bytes\n", 400_000 + log.len() + hosts.len())), "{listed}");
    let mut parts: Vec<_> =
        printed(example("tokio").arg(&disk).arg("parts")).lines().map(str::to_owned).collect();
    parts.sort();
    assert_eq!(parts, [0, 1, 2, 3].map(|n| format!("{:>12} {n}", 100_000)));
    fsck(&disk);
}

#[test]
fn the_example_builds_a_volume_from_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, disk) = (dir.path().join("rootfs"), dir.path().join("built.img"));
    std::fs::create_dir_all(folder.join("etc")).unwrap();
    std::fs::write(folder.join("etc/hostname"), "box\n").unwrap();
    assert!(printed(example("build").args([&folder, &disk])).starts_with("1 files in "));
    assert_eq!(read(&disk, "/etc/hostname"), b"box\n");
    fsck(&disk);
}

#[test]
fn the_example_keeps_volumes_in_storage_of_its_own() {
    let said = printed(&mut example("storage"));
    assert!(said.starts_with("only with the key\nfetched "), "{said}");
}

#[test]
fn the_example_writes_over_nbd() {
    if !extant_testbed::have(&["qemu-nbd"]) {
        println!("skipped: qemu-nbd is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = image(dir.path());
    let socket: PathBuf = dir.path().join("nbd.sock");
    let ready = dir.path().join("pid");
    let mut server = extant_testbed::command("qemu-nbd");
    server.arg("--format=raw").arg(format!("--socket={}", socket.display()));
    // It leaves its caller once it listens, and ends with its first client.
    server.arg("--fork").arg(format!("--pid-file={}", ready.display())).arg(&disk);
    assert!(server.status().unwrap().success());
    let pid = std::fs::read_to_string(&ready).unwrap();
    let said = example("nbd").arg(format!("nbd+unix:///?socket={}", socket.display())).output().unwrap();
    if !said.status.success() {
        let _ = Command::new("kill").arg(pid.trim()).status();
    }
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert_eq!(read(&disk, "/greeting"), b"over the network\n");
    fsck(&disk);
}
