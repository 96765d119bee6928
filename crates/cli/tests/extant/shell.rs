//! `extant shell`, with its commands from a pipe.

use crate::testbed::{Ran, extant, extant_with, fsck, have, mke2fs, noise, place};
use std::fs;
use std::path::{Path, PathBuf};

fn volume(dir: &Path) -> Option<PathBuf> {
    if !have("mke2fs") || !have("e2fsck") {
        return None;
    }
    let source = dir.join("source");
    fs::create_dir_all(source.join("etc/init d")).unwrap();
    fs::write(source.join("etc/motd"), b"hello\n").unwrap();
    let image = dir.join("image");
    mke2fs(&image, "16M", &["-t", "ext4", "-d", source.to_str().unwrap()]);
    Some(image)
}

fn shell(image: &Path, options: &[&str], lines: &str) -> Ran {
    let args = [&["shell"], options, &[image.to_str().unwrap()]].concat();
    extant_with(lines.as_bytes(), args)
}

fn told(ran: &Ran) -> String {
    String::from_utf8(ran.stdout.clone()).unwrap()
}

#[test]
fn a_volume_is_looked_at_from_a_working_directory() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    let before = fs::read(&image).unwrap();
    let out = dir.path().join("out");
    let lines = format!(
        "# a comment\npwd\ncd etc\nls\ncat motd ../etc/motd\ncd \"init d\"\npwd\nls -d .\ncd ../../..\npwd\nget etc/motd {}\nexit\ncat none\n",
        out.display()
    );
    let ran = shell(&image, &[], &lines);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert_eq!(told(&ran), "/\ninit d\nmotd\nhello\nhello\n/etc/init d\n/etc/init d\n/\n");
    assert_eq!(fs::read(&out).unwrap(), b"hello\n");
    let help = shell(&image, &[], "help\nhelp put\nls --help\n");
    assert_eq!(help.code, Some(0), "{}", help.stderr);
    for word in ["truncate", "Leave the shell", "--recursive", "--long"] {
        assert!(told(&help).contains(word), "{word}: {}", told(&help));
    }
    assert!(!told(&help).contains("IMAGE:/"), "{}", told(&help));
    assert!(fs::read(&image).unwrap() == before, "nothing is written");
}

#[test]
fn the_first_line_that_fails_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    for (options, lines, code, why) in [
        (&[][..], "cd none\npwd\n", 1, "line 1: "),
        (&[], "cd etc/motd\npwd\n", 1, "not a directory"),
        (&[], "cat none\npwd\n", 1, "/none: no such file"),
        (&[], "mkdir x\npwd\n", 2, "--write"),
        (&["-w"], "\nfrobnicate\npwd\n", 2, "line 2: unrecognized subcommand 'frobnicate'"),
        (&["-w"], "mkdir x 'y\npwd\n", 2, "a quotation that does not end"),
        (&["-w", "--ignore-journal"], "pwd\n", 2, "cannot be used with"),
    ] {
        let ran = shell(&image, options, lines);
        assert_eq!((ran.code, told(&ran).as_str()), (Some(code), ""), "{lines}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{lines}: {}", ran.stderr);
    }
    fsck(&image);
}

#[test]
fn changes_are_those_of_a_script_and_are_seen_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    let file = dir.path().join("file");
    fs::write(&file, noise(3, 100_000)).unwrap();
    let lines = format!(
        "cd etc\nput --all-root {} new\nls\nmkdir -p a/b\nmv new a/b/\ncd a/b\nln -s new link\nchmod 600 new\nls -l new\ntruncate -s 5 ../../motd\ncat /etc/motd\nrm -r '/etc/init d'\nls /etc\n",
        file.display()
    );
    let ran = shell(&image, &["--write"], &lines);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let said = told(&ran);
    let mut said = said.lines();
    assert_eq!([said.next(), said.next(), said.next()], [Some("init d"), Some("motd"), Some("new")]);
    assert!(said.next().unwrap().starts_with("-rw-------   1 "));
    assert_eq!(said.collect::<Vec<_>>(), ["helloa", "motd"]);
    fsck(&image);
    assert_eq!(extant(["cat", &place(&image, "/etc/a/b/link")]).clean(), noise(3, 100_000));
}
