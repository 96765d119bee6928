//! Commands with a volume of their own.

use crate::bed::{Bed, can_mount, extant, text};
use crate::testbed::{Ran, debugfs, fsck, have, is_root, place, run};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Whether an ordinary user's namespaces and /dev/fuse can be used.
pub(crate) fn can_exec() -> bool {
    let possible =
        Command::new("unshare").args(["-Urm", "true"]).output().is_ok_and(|ran| ran.status.success());
    if !possible {
        println!("skipped: a user namespace cannot be created");
    }
    possible && can_mount()
}

/// Runs a shell script on a volume, which must then be sound.
#[track_caller]
fn exec(bed: &Bed, options: &[&str], script: &str) -> Ran {
    let ran = exec_unchecked(bed, options, script);
    fsck(&bed.image);
    ran
}

/// Runs a shell script on a volume, and looks for what is left behind.
#[track_caller]
fn exec_unchecked(bed: &Bed, options: &[&str], script: &str) -> Ran {
    let tmp = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
    command.args(["--quiet", "exec", text(&bed.image)]).args(options).args(["--", "sh", "-c", script]);
    let ran = command.env("TMPDIR", tmp.path()).stdin(Stdio::null()).output().unwrap().into();
    assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0, "a directory is left behind");
    ran
}

fn cat(bed: &Bed, path: &str) -> String {
    extant(&["cat", &place(&bed.image, path)]).clean_text()
}

#[test]
fn a_command_gets_the_volume_and_its_code_is_kept() {
    if !can_exec() {
        return;
    }
    let bed = Bed::unmounted("16M", &[]);
    // It is process 2; the one that it leaves behind ends with it.
    let script = "test \"$PWD\" = \"$EXTANT_VOLUME\" && echo $$ $(id -u) > file && sync file && echo /proc/[0-9] >> file; \
                  sleep 1000 & exit 7";
    let ran = exec(&bed, &[], script);
    assert_eq!((ran.code, &*ran.stderr), (Some(7), ""));
    assert_eq!(cat(&bed, "/file"), "2 0\n/proc/1 /proc/2\n");
    assert_eq!(exec(&bed, &[], "kill -TERM $$").code, Some(128 + 15));
    let before = fs::read(&bed.image).unwrap();
    let ran = exec(
        &bed,
        &["--ro", "--dir", text(&bed.at)],
        &format!("cd '{}'; cat file; ! touch x 2>&-", bed.at.display()),
    );
    assert_eq!((ran.code, &*ran.stdout), (Some(0), &b"2 0\n/proc/1 /proc/2\n"[..]));
    assert!(before == fs::read(&bed.image).unwrap(), "the image has changed");
    let ran = extant(&["exec", text(&bed.image), "--", "/no/such/command"]);
    assert_eq!(
        (ran.code, &*ran.stderr),
        (Some(127), "extant: /no/such/command: No such file or directory (os error 2)\n")
    );
    fs::write(&bed.image, [0; 4096]).unwrap();
    let ran = exec_unchecked(&bed, &[], "true");
    assert!(ran.code == Some(125) && ran.stderr.contains("not an ext2"), "{ran:?}");
}

/// Programs with the libraries that they need.
pub(crate) fn little_system(at: &Path, programs: &[&str]) {
    for dir in ["bin", "etc", "proc", "dev"] {
        fs::create_dir(at.join(dir)).unwrap();
    }
    fs::write(at.join("etc/resolv.conf"), "old").unwrap();
    for program in programs {
        let path = Path::new("/bin").join(program);
        fs::copy(&path, at.join("bin").join(program)).unwrap();
        for word in run("ldd", &[text(&path)]).split_whitespace().filter(|word| word.starts_with('/')) {
            let copy = at.join(word.trim_start_matches('/'));
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(word, copy).unwrap();
        }
    }
}

#[test]
fn a_volume_is_the_root_directory() {
    if !can_exec() || !have("ldd") {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    little_system(source.path(), &["sh"]);
    let bed = Bed::unmounted("32M", &["-d", text(source.path())]);
    let script = "set -e; cd /; echo *; echo /proc/[0-9]*; echo > /dev/null; test -c /dev/tty -a -d /dev/pts -a -d /dev/shm; \
                  while read line; do echo \"$line\"; done < /etc/resolv.conf; \
                  ! echo x > /etc/resolv.conf; echo new > /etc/made; echo $EXTANT_VOLUME";
    let ran = exec(&bed, &["--root"], script);
    let told = String::from_utf8(ran.stdout).unwrap();
    let resolver = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let names = run("sh", &["-c", &format!("cd '{}'; mkdir lost+found; echo *", text(source.path()))]);
    assert_eq!(
        (told, ran.code),
        (format!("{names}/proc/1 /proc/2\n{resolver}/\n"), Some(0)),
        "{}",
        ran.stderr
    );
    assert_eq!(cat(&bed, "/etc/made"), "new\n");
    // What was laid over it has left nothing.
    assert_eq!(cat(&bed, "/etc/resolv.conf"), "old");
    assert_eq!(extant(&["ls", &place(&bed.image, "/dev")]).clean_text(), "");
    // A link that leads out of the volume leads nowhere.
    let place = |path| place(&bed.image, path);
    extant(&["rm", &place("/etc/resolv.conf")]).clean();
    extant(&["ln", "-s", "/etc/passwd", &place("/etc/resolv.conf")]).clean();
    let ran = extant(&["exec", text(&bed.image), "--root", "--", "sh", "-c", "echo /etc/*"]);
    assert_eq!((ran.code, &*ran.stdout), (Some(0), &b"/etc/made /etc/resolv.conf\n"[..]));
    // The volume lacks the directories that the host's variables name.
    let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
    let script = "echo $HOME ${TMPDIR-none} $PATH";
    command.args(["exec", text(&bed.image), "--root", "--", "sh", "-c", script]);
    command.env("HOME", bed.image.parent().unwrap()).env("TMPDIR", bed.image.parent().unwrap());
    let output = command.env("PATH", "/bin:/no/bin").stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(told, "/root none /bin:/no/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin\n");
}

fn start(bed: &Bed, script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    // What runs in the background of a script inherits signals that are ignored, and a shell cannot
    // set traps for those.
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_extant")]);
    command.args(["--quiet", "exec", text(&bed.image), "--", "sh", "-c", script]);
    // A killed server leaves a directory behind.
    command.env("TMPDIR", bed.image.parent().unwrap());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, told)
}

#[test]
fn signals_reach_the_command() {
    if !can_exec() {
        return;
    }
    let bed = Bed::unmounted("16M", &[]);
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::USR1, "USR1")] {
        let (mut child, _told) =
            start(&bed, &format!("trap 'echo {name} >> got; exit 3' {name}; echo ready; sleep 1000 & wait"));
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(3));
        fsck(&bed.image);
    }
    assert_eq!(cat(&bed, "/got"), "TERM\nINT\nUSR1\n");
}

#[test]
fn nothing_outlives_a_killed_server_and_what_was_synced_survives() {
    if !can_exec() {
        return;
    }
    let bed = Bed::unmounted("16M", &[]);
    let (mut child, mut told) = start(&bed, "echo text > file; sync file .; sleep 1000 & echo ready; wait");
    child.kill().unwrap();
    child.wait().unwrap();
    // Every process that could write there has ended.
    told.read_to_end(&mut Vec::new()).unwrap();
    let ran = exec(&bed, &[], "cat file");
    assert_eq!((ran.code, &*ran.stdout), (Some(0), &b"text\n"[..]), "{}", ran.stderr);
}

/// Runs a shell script on a volume as the ordinary user `ada`, with `ranges` in /etc/subuid.
pub(crate) fn exec_as_user(bed: &Bed, ranges: &str, fuse_mode: &str, options: &str, script: &str) -> Ran {
    exec_as_user_by(bed, "./extant -q", ranges, fuse_mode, options, script)
}

/// Like [`exec_as_user`], with the words before `exec`.
pub(crate) fn exec_as_user_by(
    bed: &Bed,
    launcher: &str,
    ranges: &str,
    fuse_mode: &str,
    options: &str,
    script: &str,
) -> Ran {
    let dir = bed.image.parent().unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&bed.image, Some(1234), None).unwrap();
    let prepared = "set -e; touch extant; mount --bind \"$1\" extant; mount -t tmpfs -o mode=755 none mnt; \
                    mkdir mnt/etc; echo ada:x:1234:1234::/:/bin/sh | cat /etc/passwd - > mnt/etc/passwd; \
                    printf %s \"$4\" | tee mnt/etc/subuid > mnt/etc/subgid; mount --bind mnt/etc /etc; \
                    mknod mnt/fuse c 10 229; chmod $2 mnt/fuse; mount --bind mnt/fuse /dev/fuse; chmod 1777 mnt; \
                    export TMPDIR=$PWD/mnt; \
                    exec setpriv --reuid 1234 --regid 1234 --clear-groups $6 exec image $5 -- sh -c \"$3\"";
    let mut command = Command::new("unshare");
    command.args([
        "-m",
        "sh",
        "-c",
        prepared,
        "sh",
        env!("CARGO_BIN_EXE_extant"),
        fuse_mode,
        script,
        ranges,
        options,
        launcher,
    ]);
    command.current_dir(dir).stdin(Stdio::null()).output().unwrap().into()
}

#[test]
fn an_ordinary_user_is_root_of_the_volume() {
    if !can_exec() || !is_root() || !have("setpriv") || !have("newuidmap") {
        return;
    }
    let bed = Bed::unmounted("16M", &["-E", "root_owner=0:0"]);
    debugfs(
        &bed.image,
        &["write /etc/hostname /theirs", "sif /theirs uid 55", "sif /theirs gid 66"].map(str::to_owned),
    );
    let before = fs::read(&bed.image).unwrap();
    let ran = exec_as_user(&bed, "", "600", "", "true");
    assert!(ran.code == Some(125) && ran.stderr.contains("chmod 666 /dev/fuse"), "{ran:?}");
    assert!(before == fs::read(&bed.image).unwrap(), "the image has changed");
    // Alone in the namespace: others appear as root, and stay who they are.
    let owners = "stat -c %u:%g theirs";
    let ran = exec_as_user(&bed, "", "666", "", &format!("{owners}; echo more >> theirs; echo mine > mine"));
    assert_eq!((&*ran.stdout, &*ran.stderr, ran.code), (&b"0:0\n"[..], "", Some(0)));
    fsck(&bed.image);
    let owned = |path: &str| {
        let told = extant(&["stat", "--json", &place(&bed.image, path)]).clean_text();
        ["uid", "gid"].map(|id| {
            told.split(&format!("\"{id}\":")).nth(1).unwrap().trim().split(',').next().unwrap().to_owned()
        })
    };
    assert_eq!(
        (owned("/theirs"), owned("/mine")),
        (["55", "66"].map(str::to_owned), ["0", "0"].map(str::to_owned))
    );
    // With ranges of ids, all are who they are.
    let script = format!(
        "{owners}; chown 5:6 mine; setpriv --reuid 55 --regid 66 --clear-groups sh -c 'echo x > theirs; ! echo x > mine' 2>&-; cat theirs"
    );
    let ran = exec_as_user(&bed, "eve:1:1\nada:100000:65536\n", "666", "", &script);
    assert_eq!((&*ran.stdout, &*ran.stderr, ran.code), (&b"55:66\nx\n"[..], "", Some(0)));
    fsck(&bed.image);
    assert_eq!(owned("/mine"), ["5", "6"].map(str::to_owned));
}
