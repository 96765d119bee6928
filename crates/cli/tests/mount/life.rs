//! Mounting, unmounting, and what goes wrong there.

use crate::bed::{Bed, can_mount, extant, text};
use crate::testbed::{Ran, assert_same, look, run};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

#[test]
fn a_read_only_mount_shows_the_tree_and_writes_nothing() {
    if !can_mount() {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    let script = "mkdir a b; echo one > a/one; ln a/one b/two; ln -s ../a/one b/link; head -c 300000 /dev/urandom > big; \
                  truncate -s 1M hole; printf x | dd of=hole bs=1 seek=700000 conv=notrunc 2>/dev/null; \
                  mkfifo b/pipe; for n in $(seq 500); do echo $n > a/a-name-of-some-length-$n; done; chmod 4711 a/one";
    run("sh", &["-c", &format!("set -e; cd '{}'; {script}", source.path().display())]);
    let mut bed = Bed::unmounted("16M", &["-d", text(source.path())]);
    let before = fs::read(&bed.image).unwrap();
    bed.mount("ro");
    // mke2fs -d copies whole seconds, and not those of the root directory.
    let copied = |root: &std::path::Path| {
        let mut seen = look(root);
        seen.remove(&b""[..]);
        seen.values_mut().for_each(|seen| seen.modified.1 = 0);
        seen
    };
    assert_same("a mount", &copied(&bed.at), &copied(source.path()));
    assert_eq!(bed.shell("find . -name 'a-name*' | wc -l").trim(), "500");
    assert_eq!(bed.shell("stat -f -c %T . | cut -c1-4").trim(), "fuse");
    let refused = fs::write(bed.path("new"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30));
    bed.umount();
    assert!(before == fs::read(&bed.image).unwrap(), "the image has changed");
}

#[test]
fn mount_and_umount_find_it_under_the_names_that_they_look_for() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::unmounted("8M", &[]);
    // A volume that begins at 1 MiB of its image.
    let mut whole = vec![0; 1 << 20];
    whole.extend(fs::read(&bed.image).unwrap());
    fs::write(&bed.image, whole).unwrap();
    let (image, at) = (text(&bed.image).to_owned(), text(&bed.at).to_owned());
    let under = |name: &str, args: &[&str]| -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
        command.arg0(name).args(args).stdin(Stdio::null()).output().unwrap().into()
    };
    // As in a line of /etc/fstab with the options
    // "noauto,user,x-systemd.idle-timeout=60,offset=1M".
    let options = "rw,noauto,user,x-systemd.idle-timeout=60,offset=1M";
    for name in ["/sbin/mount.fuse.extant", "/sbin/mount.extant"] {
        let ran = under(name, &[&image, &at, "-f", "-o", options]);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
        assert!(!bed.path("lost+found").exists(), "-f mounts nothing");
        let ran = under(name, &[&image, &at, "-n", "-o", options, "-t", "fuse.extant"]);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
        fs::write(bed.path("file"), "text").unwrap();
        let ran = under("/sbin/umount.fuse.extant", &[&at, "-n", "-t", "fuse.extant"]);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    }
    // mount.fuse3 runs the command by its own name.
    let ran = under("extant", &[&image, &at, "-o", options]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    assert_eq!(fs::read(bed.path("file")).unwrap(), b"text");
    let ran = under("/sbin/umount.extant", &[&at]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    let whole = fs::read(&bed.image).unwrap();
    fs::write(&bed.image, &whole[1 << 20..]).unwrap();
    bed.mount("ro");
    bed.umount();
}

#[test]
fn what_cannot_be_mounted_is_refused_with_a_reason() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::unmounted("8M", &[]);
    let ran = bed.try_mount("ro,data=ordered");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("data: there is no such mount option"), "{}", ran.stderr);
    bed.mount("");
    let other = tempfile::tempdir().unwrap();
    let ran = extant(&["mount", text(&bed.image), text(other.path())]);
    assert_eq!(ran.code, Some(1));
    let expected = format!("mounted on {}", bed.at.display());
    assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    let place = format!("{}:/x", bed.image.display());
    let ran = extant(&["mkdir", &place]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    bed.umount();
    let ran = extant(&["umount", text(&bed.at)]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("nothing is mounted here"), "{}", ran.stderr);
    // Not a volume; not a directory.
    fs::write(&bed.image, [0; 4096]).unwrap();
    assert_eq!(bed.try_mount("").code, Some(3));
    let ran = extant(&["mount", text(&bed.image), text(&bed.image)]);
    assert!(ran.code == Some(1) && ran.stderr.contains("is not a directory"), "{}", ran.stderr);
}

#[test]
fn a_busy_directory_stays_mounted_and_a_signal_unmounts() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("8M", &[], "");
    let file = fs::File::create(bed.path("open")).unwrap();
    let ran = extant(&["umount", text(&bed.at)]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("in use"), "{}", ran.stderr);
    drop(file);
    let pid = bed.server();
    let server = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut wait = [rustix::event::PollFd::new(&server, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut wait, None).unwrap();
    assert!(!bed.path("open").exists(), "it is still mounted");
    run("e2fsck", &["-fn", text(&bed.image)]);
    bed.mount("");
    assert!(bed.path("open").exists());
    bed.umount();
}

#[test]
fn a_server_is_in_a_sandbox_unless_it_is_told_not_to_be() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::unmounted("8M", &[]);
    let limits = |bed: &Bed| {
        let status = fs::read_to_string(format!("/proc/{}/status", bed.server().as_raw_nonzero())).unwrap();
        let of =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        [of("NoNewPrivs:"), of("Seccomp:")]
    };
    bed.mount("");
    // A filter.
    assert_eq!(limits(&bed), ["1", "2"]);
    bed.umount();
    let outside = ["NoNewPrivs:", "Seccomp:"].map(|name| {
        run("sh", &["-c", &format!("sed -n 's/^{name}.//p' /proc/self/status")]).trim().to_owned()
    });
    let ran = extant(&["mount", "--no-sandbox", text(&bed.image), text(&bed.at)]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    assert_eq!(limits(&bed), outside);
    bed.umount();
}

#[test]
fn a_volume_is_the_same_for_the_kernel() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("32M", &[], "");
    bed.shell(
        "mkdir -p d/e/f; cp -a /etc/os-release d/e; ln d/e/os-release d/e/f/second; mkfifo d/pipe; \
         printf hello > d/sparse; truncate -s 100000 d/sparse; ln -s long/$(printf %080d 1) d/link; touch -d 1999-12-31 d/e/f",
    );
    let ours = look(&bed.at);
    bed.umount();
    let Some(kernel) = crate::testbed::mounted(&bed.image, "ro") else { return };
    assert_same("the kernel", &ours, &look(kernel.path()));
}
