//! Images in use by the kernel or another program.

use crate::testbed::{Ran, extant, extant_with, fsck, have, mke2fs, place, run};
use extant_testbed::{LoopDevice, Mount, can_mount};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Creates `dir`, with a volume in it that has a directory and a file.
fn volume(dir: &Path) -> PathBuf {
    fs::create_dir_all(dir).unwrap();
    let image = dir.join("x.img");
    mke2fs(&image, "16M", &["-t", "ext4", "-E", "root_owner=0:0"]);
    extant(["mkdir", &place(&image, "/kept")]).clean();
    extant_with(b"truncate -s 10000 /file", ["edit", image.to_str().unwrap()]).clean();
    image
}

/// Every command that writes to an image's volume or takes over its name.
fn writers(image: &Path, dir: &Path) -> Vec<Vec<String>> {
    let source = dir.join("source");
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("new"), b"new").unwrap();
    let (at, file) = (|path: &str| place(image, path), source.join("new"));
    let (image, source, file) = (image.to_str().unwrap(), source.to_str().unwrap(), file.to_str().unwrap());
    let commands: [&[&str]; 22] = [
        &["put", file, &at("/new")],
        &["put", "-r", source, &at("/")],
        &["mkdir", &at("/new")],
        &["rm", "-r", &at("/kept")],
        &["mv", &at("/kept"), &at("/gone")],
        &["ln", &at("/file"), &at("/link")],
        &["chmod", "600", &at("/kept")],
        &["chown", "1:1", &at("/kept")],
        &["xattr", "-s", "user.a=b", &at("/kept")],
        &["truncate", "-s", "0", &at("/file")],
        &["fallocate", "-l", "4096", &at("/file")],
        &["copy", &at("/file"), &at("/copy")],
        &["defrag", &at("/file")],
        &["trim", image],
        &["recover", image],
        &["shrink", image],
        &["edit", image, "/dev/null"],
        &["shell", "--write", image],
        &["mkfs", image, "8M"],
        &["build", source, "-o", image],
        &["build", source, "--into", image],
        &["build", source, "--into", &at("/kept")],
    ];
    commands.map(|command| command.iter().map(|word| word.to_string()).collect()).into()
}

#[track_caller]
fn refused(ran: &Ran, told: &[&str]) {
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stdout.is_empty(), "{}", String::from_utf8_lossy(&ran.stdout));
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    for told in told {
        assert!(ran.stderr.contains(told), "{told}: {}", ran.stderr);
    }
}

/// Runs as root in a separate mount namespace, after `setup`.
fn elsewhere(setup: &str, args: &[String]) -> Ran {
    let script = format!("{setup} && exec \"$0\" --quiet \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    command.arg(env!("CARGO_BIN_EXE_extant")).args(args).stdin(Stdio::null());
    command.output().unwrap().into()
}

#[test]
fn a_mounted_volume_is_written_under_no_name() {
    if !have("mke2fs") || !have("unshare") || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(&dir.path().join("a"));
    let (hard, other) = (dir.path().join("hard"), dir.path().join("b"));
    fs::hard_link(&image, &hard).unwrap();
    fs::create_dir(&other).unwrap();
    let bind = format!("mount --bind {}/a {}/b", dir.path().display(), dir.path().display());
    let bound = other.join("x.img");
    let mount = Mount::new(&image, &dir.path().join("mnt"), "rw");
    fs::write(mount.path().join("kernel"), b"of the kernel").unwrap();
    for (name, setup) in [(&image, "true"), (&hard, "true"), (&bound, bind.as_str())] {
        for mut command in writers(name, dir.path()) {
            // The second attempt, with --force, must be refused too.
            for _ in 0..2 {
                let ran = elsewhere(setup, &command);
                refused(&ran, &["it is attached to /dev/loop", "losetup -d"]);
                assert_eq!(ran.stderr.contains(" as "), name != &image, "{}", ran.stderr);
                command.insert(1, "--force".into());
            }
        }
    }
    let options = ::extant::OpenOptions::new().write(true).override_locks(true);
    let opened = ::extant::Volume::open(&hard, &options).unwrap_err();
    assert!(matches!(opened, ::extant::Error::Busy(_)), "{opened}");
    // Reading is allowed.
    assert!(elsewhere(&bind, &["ls".into(), bound.to_str().unwrap().into()]).clean_text().contains("kept"));
    drop(mount);
    fsck(&image);
    let listed = extant(["ls", image.to_str().unwrap()]).clean_text();
    assert_eq!(listed, "file\nkept\nkernel\nlost+found\n");
}

#[test]
fn an_image_with_the_name_of_a_mounted_one_in_another_namespace_is_not_that_one() {
    if !have("mke2fs") || !have("unshare") || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, namesake) = (volume(&dir.path().join("a")), volume(&dir.path().join("b")));
    let bind = format!("mount --bind {}/b {}/a", dir.path().display(), dir.path().display());
    let mount = Mount::new(&image, &dir.path().join("mnt"), "rw");
    elsewhere(&bind, &["mkdir".into(), place(&image, "/new")]).clean();
    drop(mount);
    assert!(!extant(["ls", image.to_str().unwrap()]).clean_text().contains("new"));
    assert!(extant(["ls", namesake.to_str().unwrap()]).clean_text().contains("new"));
    fsck(&namesake);
}

#[test]
fn an_image_that_took_the_name_of_a_mounted_one_is_not_that_one() {
    if !have("mke2fs") || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(&dir.path().join("a"));
    let mount = Mount::new(&image, &dir.path().join("mnt"), "rw");
    fs::rename(volume(&dir.path().join("b")), &image).unwrap();
    extant(["mkdir", &place(&image, "/new")]).clean();
    drop(mount);
    assert!(extant(["ls", image.to_str().unwrap()]).clean_text().contains("new"));
    fsck(&image);
}

#[test]
fn a_user_who_may_not_ask_loop_devices_is_refused_a_mounted_image_too() {
    if !have("mke2fs") || !have("setpriv") || !can_mount() {
        return;
    }
    let dir = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let image = volume(&dir.path().join("a"));
    let hard = dir.path().join("hard");
    fs::hard_link(&image, &hard).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o666)).unwrap();
    let as_nobody = |args: &[&str]| -> Ran {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            env!("CARGO_BIN_EXE_extant"),
            "-q",
        ]);
        command.args(args).stdin(Stdio::null());
        command.output().unwrap().into()
    };
    if as_nobody(&["--version"]).code != Some(0) {
        return println!("skipped: other users may not run the command where it was built");
    }
    let mount = Mount::new(&image, &dir.path().join("mnt"), "rw");
    for name in [&image, &hard] {
        refused(&as_nobody(&["mkdir", &place(name, "/new")]), &["it is attached to ", "losetup -d"]);
    }
    drop(mount);
    as_nobody(&["mkdir", &place(&hard, "/new")]).clean();
    fsck(&image);
}

#[test]
fn an_image_that_is_mounted_through_a_layer_above_its_file_system_is_refused() {
    if !have("mke2fs") || !have("unshare") || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(&dir.path().join("upper"));
    let script = "cd \"$0\" && mkdir lower work merged \
        && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 9; \
        losetup --find --show merged/x.img";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(dir.path());
    let attached = Ran::from(command.stdin(Stdio::null()).output().unwrap());
    if attached.code == Some(9) {
        return println!("skipped: the kernel mounts no overlay here: {}", attached.stderr);
    }
    let device = LoopDevice::attached(attached.clean_text().trim().into());
    let name = device.path().to_str().unwrap();
    refused(&extant(["mkdir", &place(&image, "/new")]), &[name, "losetup -d"]);
    refused(&extant(["mkfs", image.to_str().unwrap(), "8M"]), &[name]);
    drop(device);
    extant(["mkdir", &place(&image, "/new")]).clean();
    fsck(&image);
}

#[test]
fn an_image_that_a_layer_above_has_copied_up_is_refused() {
    if !have("mke2fs") || !have("unshare") || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    volume(&dir.path().join("lower"));
    // The mounted file is the copy in `upper`, which overlayfs shows with the number of the lower
    // one.
    let script = "cd \"$0\" && mkdir upper work merged mnt \
        && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 9; \
        mount -o loop merged/x.img mnt && echo kept > mnt/kept/new && sync && losetup -nO NAME -j merged/x.img \
        && exec sleep 1000";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(dir.path());
    let mut mounted = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut device = Vec::new();
    let mut said = mounted.stdout.take().unwrap();
    let mut byte = [0];
    while said.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        device.extend(byte);
    }
    if device.is_empty() {
        let _ = mounted.wait();
        return println!("skipped: the kernel mounts no overlay here");
    }
    let image = dir.path().join("upper/x.img");
    let ran = extant(["mkdir", &place(&image, "/new")]);
    mounted.kill().unwrap();
    mounted.wait().unwrap();
    refused(&ran, &[&String::from_utf8(device).unwrap()]);
    fsck(&image);
}

#[test]
fn what_is_in_use_is_not_written_over_by_an_export_or_a_copy() {
    if !have("mke2fs") || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = volume(&dir.path().join("source"));
    let image = volume(&dir.path().join("used"));
    let used = image.to_str().unwrap();
    let exported = dir.path().join("used.tar");
    fs::hard_link(&image, &exported).unwrap();
    let exported = exported.to_str().unwrap();
    let before = fs::read(&image).unwrap();
    let disk = LoopDevice::attach(&image, &[]).unwrap();
    refused(&extant(["export", &place(&source, "/"), "-o", exported]), &["loop"]);
    refused(&extant(["cp", &place(&source, "/file"), used]), &["loop"]);
    drop(disk);
    // Nor the image that is read.
    refused(&extant(["export", &place(&image, "/"), "-o", exported]), &["the image that is read"]);
    refused(&extant(["cp", &place(&image, "/file"), used]), &["the image that is read"]);
    assert!(fs::read(&image).unwrap() == before);
    extant(["export", &place(&source, "/"), "-o", exported]).clean();
}

#[test]
fn a_disk_under_a_loop_device_that_is_mounted_is_refused() {
    if !have("mke2fs") || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(&dir.path().join("a"));
    let disk = LoopDevice::attach(&image, &[]).unwrap();
    let mount = Mount::new(disk.path(), &dir.path().join("mnt"), "rw");
    for args in [["mkdir", &place(disk.path(), "/new")], ["shrink", disk.path().to_str().unwrap()]] {
        assert_eq!(extant(args).code, Some(1), "{args:?}");
    }
    drop(mount);
    extant(["mkdir", &place(disk.path(), "/new")]).clean();
    drop(disk);
    fsck(&image);
}

#[test]
fn a_volume_is_made_on_a_disk_which_the_kernel_mounts() {
    if !have("mke2fs") || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(&dir.path().join("a"));
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("new"), b"of the new volume").unwrap();
    let disk = LoopDevice::attach(&image, &[]).unwrap();
    let (name, source) = (disk.path().to_str().unwrap(), source.to_str().unwrap());
    refused(&extant(["mkfs", name]), &["holds an ext4 volume", "--force"]);
    extant(["mkfs", "--force", "-t", "ext2", name]).clean();
    run("e2fsck", &["-fn", name]);
    extant(["build", source, "--force", "--discard", "-o", name]).clean();
    let mount = Mount::new(disk.path(), &dir.path().join("mnt"), "rw");
    assert_eq!(fs::read(mount.path().join("new")).unwrap(), b"of the new volume");
    fs::write(mount.path().join("more"), vec![7; 1 << 20]).unwrap();
    drop(mount);
    // Mounted itself, it is known by its number.
    let at = dir.path().join("direct");
    fs::create_dir(&at).unwrap();
    run("mount", &[name, at.to_str().unwrap()]);
    let ran = extant(["mkfs", "--force", name]);
    run("umount", &[at.to_str().unwrap()]);
    refused(&ran, &["in use: device 7:", &format!("is mounted on {}; unmount it first", at.display())]);
    drop(disk);
    assert_eq!(fs::metadata(&image).unwrap().len(), 16 << 20);
    fsck(&image);
}

/// QEMU's interactive tool for block devices, with an image open as in a virtual machine.
struct Machine {
    qemu_io: Child,
    _said: ChildStdout,
}

impl Machine {
    /// `None`, with a message, if it is not installed.
    fn over(image: &Path, options: &[&str]) -> Option<Self> {
        if !have("qemu-io") {
            return None;
        }
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]).args(options).arg(image).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut qemu_io = command.spawn().unwrap();
        let (mut said, mut input) = (qemu_io.stdout.take().unwrap(), qemu_io.stdin.take().unwrap());
        // It answers once it has opened the image.
        input.write_all(b"length\n").unwrap();
        input.flush().unwrap();
        qemu_io.stdin = Some(input);
        let mut answer = [0; 1];
        said.read_exact(&mut answer).unwrap();
        while answer != *b"M" {
            said.read_exact(&mut answer).unwrap();
        }
        Some(Self { qemu_io, _said: said })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.qemu_io.stdin.take());
        let _ = self.qemu_io.wait();
    }
}

#[test]
fn an_image_that_a_virtual_machine_uses_is_written_only_by_force() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(&dir.path().join("a"));
    let before = fs::read(&image).unwrap();
    for options in [&[][..], &["-r"]] {
        let Some(machine) = Machine::over(&image, options) else { return };
        let holder = format!("qemu-io (process {})", machine.qemu_io.id());
        for command in writers(&image, dir.path()) {
            refused(&extant(&command), &[&holder, "holds a lock", "--force"]);
        }
        let other = dir.path().join("other");
        let (image, other) = (image.to_str().unwrap(), other.to_str().unwrap());
        // What is read twice must not change meanwhile.
        refused(&extant(["shrink", image, "-o", other]), &[&holder]);
        refused(&extant(["trim", "--json", image]), &[&holder]);
        // Readers tolerate concurrent changes.
        assert!(extant(["ls", image]).clean_text().contains("kept"));
        drop(machine);
    }
    assert!(fs::read(&image).unwrap() == before, "nothing was written");
    for command in ["mkdir", "rm", "mkdir"] {
        let _machine = Machine::over(&image, &[]).unwrap();
        let words: &[&str] = if command == "rm" { &["rm", "-r"] } else { &["mkdir"] };
        let place = place(&image, "/by-force");
        refused(&extant([words, &[&place]].concat()), &["qemu-io"]);
        extant([words, &["--force", &place]].concat()).clean();
    }
    assert!(extant(["ls", image.to_str().unwrap()]).clean_text().contains("by-force"));
    fsck(&image);
}

#[test]
fn every_command_that_writes_may_be_forced() {
    if !have("mke2fs") || !have("qemu-io") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut count = 0;
    for mut command in writers(&dir.path().join("a/x.img"), dir.path()) {
        let _ = fs::remove_dir_all(dir.path().join("a"));
        let image = volume(&dir.path().join("a"));
        let _machine = Machine::over(&image, &[]).unwrap();
        command.insert(1, "--force".into());
        let ran = extant(&command);
        assert_eq!(ran.code, Some(0), "{command:?}: {}", ran.stderr);
        fsck(&image);
        count += 1;
    }
    assert!(count > 20);
}

#[test]
fn a_virtual_machine_keeps_off_an_image_that_is_being_written() {
    if !have("mke2fs") || !have("qemu-io") || !have("qemu-nbd") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(&dir.path().join("a"));
    let qemu = |program: &str, args: &[&str]| -> Ran {
        let mut command = Command::new(program);
        command.args(["-f", "raw"]).args(args).arg(&image).stdin(Stdio::null());
        command.output().unwrap().into()
    };
    let socket = dir.path().join("socket");
    let serve = ["-k", socket.to_str().unwrap()];
    let options = ::extant::OpenOptions::new().write(true);
    let volume = ::extant::Volume::open(&image, &options).unwrap();
    for (program, args) in [("qemu-io", &["-c", "write 0 512"][..]), ("qemu-nbd", &serve)] {
        let ran = qemu(program, args);
        assert!(ran.code != Some(0) && ran.stderr.contains(" lock"), "{program} {args:?}: {}", ran.stderr);
    }
    // Readers that tolerate a writer can read while we write.
    for share in [&["-r", "-c", "read 0 512"][..], &["-r", "-U", "-c", "read 0 512"]] {
        let ran = qemu("qemu-io", share);
        assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{}", ran.stderr);
    }
    assert!(extant(["ls", image.to_str().unwrap()]).clean_text().contains("kept"));
    // A second writer of ours is refused even with force.
    for force in [&[][..], &["--force"]] {
        let ran = extant([&["mkdir"], force, &[&place(&image, "/second")]].concat());
        refused(&ran, &["in use"]);
        assert!(!ran.stderr.contains("--force"), "{}", ran.stderr);
        refused(&extant([&["mkfs"], force, &[image.to_str().unwrap(), "8M"]].concat()), &["in use"]);
    }
    volume.close().unwrap();
    assert_eq!(qemu("qemu-io", &["-c", "read 0 512"]).code, Some(0));
    fsck(&image);
}

#[test]
fn locks_of_every_kind_name_their_owner() {
    if !have("mke2fs") || !have("flock") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(&dir.path().join("a"));
    let command = ["mkdir", &place(&image, "/new")];
    // flock(2), held by a program that runs another one.
    let mut locked = Command::new("flock");
    locked.arg("--no-fork").arg(&image).args(["sh", "-c", "echo; cat"]);
    let mut locked = locked.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    locked.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let ran = extant(command);
    drop(locked.stdin.take());
    locked.wait().unwrap();
    refused(&ran, &[" (process ", "--force"]);
    // A process lock, as taken by lockf(3).
    let file = fs::File::options().read(true).write(true).open(&image).unwrap();
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let ran = extant(command);
    let own = format!("(process {})", std::process::id());
    refused(&ran, &[&own, "--force"]);
    drop(file);
    extant(command).clean();
    fsck(&image);
}

#[test]
fn force_means_nothing_to_commands_of_a_batch() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(&dir.path().join("a"));
    let image = image.to_str().unwrap();
    let ran = extant_with(b"mkdir --force /new", ["edit", image]);
    assert!(ran.code == Some(2) && ran.stderr.contains("line 1: --force"), "{}", ran.stderr);
    extant_with(b"rm --force /none\nln --force /file /kept/link\nrm -f /none", ["edit", image]).clean();
    run("e2fsck", &["-fn", image]);
}
