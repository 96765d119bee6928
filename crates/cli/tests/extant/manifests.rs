//! Manifests as sources of `build`.

use crate::testbed::{extant, fsck, have};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// A directory with some files.
fn source(dir: &Path) -> String {
    let source = dir.join("source");
    for name in ["etc", "bin"] {
        fs::create_dir_all(source.join(name)).unwrap();
    }
    for (name, text) in [
        ("etc/motd", "hello"),
        ("etc/two words", "2"),
        ("bin/su", "su"),
        ("etc/passwd", "root:x:0:0::/:\nwww:x:333:33::/:\n"),
        ("etc/group", "root:x:0:\nweb:x:444:\n"),
    ] {
        fs::write(source.join(name), text).unwrap();
    }
    symlink("su", source.join("bin/sudo")).unwrap();
    fs::set_permissions(source.join("bin/su"), fs::Permissions::from_mode(0o755)).unwrap();
    source.to_str().unwrap().to_owned()
}

#[test]
fn a_manifest_changes_and_makes_files() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (image, list, contents) = (at("image"), at("list"), at("contents"));
    fs::write(&contents, "from elsewhere").unwrap();
    let text = format!(
        "#mtree\n/set uid=0 gid=0 type=file time=1000000000.0\n. type=dir mode=0755\n\
         etc type=dir mode=0750\n  motd mode=0600 uname=www gname=web\n  two\\040words optional time=2000000000.5\n  ..\n\
         ./bin/su mode=4755 uid=7\n./bin/sudo type=link link=other\n\
         ./dev/null type=char mode=0666 device=native,1,3\n./run/pipe type=fifo mode=0620 gid=5\n\
         ./etc/new mode=0640 contents={contents} size=14\n./none optional\n./etc/passwd nochange\n"
    );
    fs::write(&list, text).unwrap();
    extant(["build", &source, &list, "-o", &image]).clean();
    fsck(Path::new(&image));
    let listed = extant(["ls", "-lR", &format!("{image}:/")]).clean_text();
    let line = |name: &str| {
        let found = listed.lines().find(|line| line.contains(&format!(" UTC {name}")));
        let found = found.unwrap_or_else(|| panic!("{name} in {listed}"));
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (name, told) in [
        ("etc/motd", "-rw------- 1 333:444 5 2001-09-09 01:46:40 UTC etc/motd"),
        ("bin/su", "-rwsr-xr-x 1 7:0 2 2001-09-09 01:46:40 UTC bin/su"),
        ("bin/sudo", "lrwxrwxrwx 1 0:0 5 2001-09-09 01:46:40 UTC bin/sudo -> other"),
        ("dev/null", "crw-rw-rw- 1 0:0 1, 3 2001-09-09 01:46:40 UTC dev/null"),
        ("run/pipe", "prw--w---- 1 0:5 0 2001-09-09 01:46:40 UTC run/pipe"),
        ("etc/new", "-rw-r----- 1 0:0 14 2001-09-09 01:46:40 UTC etc/new"),
    ] {
        assert_eq!(line(name), told);
    }
    assert!(
        listed.contains("2033-05-18 03:33:20.000000005 UTC etc/two words") || listed.contains("2033-05-18")
    );
    assert!(!listed.contains("none"));
    assert_eq!(extant(["cat", &format!("{image}:/etc/new")]).clean(), b"from elsewhere");
    assert_eq!(extant(["cat", &format!("{image}:/etc/motd")]).clean(), b"hello");

    for (line, told) in [
        ("./gone mode=0600 type=file", "there is no /gone in the sources before, and no contents="),
        ("./etc type=file", "/etc is a directory in the sources before"),
        ("./x type=char", "a device needs device="),
        ("./x type=link", "a link needs link=TARGET"),
        ("./etc/motd uname=nobody-has-this", "knows the user nobody-has-this"),
        ("./x type=file contents=/none/there", "No such file"),
        (&format!("./x type=file size=3 contents={contents}"), "has 14 bytes, not 3"),
        ("./etc/motd shade=blue", "is no keyword of mtree(5)"),
    ] {
        fs::write(&list, format!("#mtree\n\n{line}\n")).unwrap();
        let ran = extant(["build", &source, &list, "-o", &image]);
        assert!(ran.code == Some(1), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains("line 3: ") && ran.stderr.contains(told), "{line}: {}", ran.stderr);
    }
}

/// What bsdtar says of a directory makes the same volume.
#[test]
fn a_manifest_of_bsdtar_makes_the_same_volume() {
    if !have("bsdtar") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (list, one, two, three) = (at("list"), at("one"), at("two"), at("three"));
    let wrote = Command::new("bsdtar").args(["-cf", &list, "--format=mtree", "-C", &source, "."]).status();
    assert!(wrote.unwrap().success());
    extant(["build", &source, "-o", &one]).clean();
    extant(["build", &source, &list, "-o", &two]).clean();
    assert!(fs::read(&one).unwrap() == fs::read(&two).unwrap());
    // Alone, it names files below the current directory.
    let alone = Command::new(env!("CARGO_BIN_EXE_extant"))
        .args(["-q", "build", &list, "-o", &three])
        .current_dir(&source)
        .output()
        .unwrap();
    assert!(alone.status.success(), "{alone:?}");
    extant(["diff", &one, &three]).clean();
}
