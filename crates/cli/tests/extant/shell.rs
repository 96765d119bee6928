//! `extant shell` with commands from a pipe.

use crate::testbed::{Ran, extant, extant_with, fsck, have, mke2fs, noise, place};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// Runs a session at a terminal, typing each line when the prompt appears. Returns what the
/// terminal showed.
fn typed(image: &Path, state: &Path, lines: &[&str]) -> String {
    // The line editor enables bracketed paste when it begins to read a line.
    const READS: &[u8] = b"\x1b[?2004h";
    let command = format!("{} shell {}", env!("CARGO_BIN_EXE_extant"), image.display());
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    script.env("XDG_STATE_HOME", state).env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.spawn().unwrap();
    let (mut keys, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let mut shown = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let mut part = [0; 4096];
        while shown.windows(READS.len()).filter(|bytes| *bytes == READS).count() <= n {
            let len = screen.read(&mut part).unwrap();
            assert!(len > 0, "{}", String::from_utf8_lossy(&shown));
            shown.extend_from_slice(&part[..len]);
        }
        keys.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    screen.read_to_end(&mut shown).unwrap();
    drop(keys);
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(script.wait().unwrap().success(), "{shown}");
    shown
}

#[test]
fn lines_of_an_earlier_session_are_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()).filter(|_| have("script")) else { return };
    let state = dir.path().join("state");
    typed(&image, &state, &["cat etc/motd", " ls", "exit"]);
    let history = state.join("extant/history");
    assert_eq!(fs::read_to_string(&history).unwrap(), "cat etc/motd\nexit\n");
    assert_eq!(fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);
    // The up-arrow key, twice.
    let shown = typed(&image, &state, &["\x1b[A\x1b[A", "exit"]);
    assert!(shown.contains("\nhello"), "{shown}");
    assert_eq!(fs::read_to_string(&history).unwrap(), "cat etc/motd\nexit\ncat etc/motd\nexit\n");
    // An impossible path, because a file is in the way.
    let shown = typed(&image, &image, &["cat etc/motd", "exit"]);
    assert!(shown.contains("\nhello"), "{shown}");
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
fn the_shell_knows_the_options_of_the_commands() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let lines =
        format!("cd etc\nls -1r\nls -lh motd\nhead -n 1 motd\ncp -r motd 'init d' {}\n", out.display());
    let ran = shell(&image, &[], &lines);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let told = told(&ran);
    assert!(told.starts_with("motd\ninit d\n-rw-") && told.ends_with("motd\nhello\n"), "{told}");
    assert_eq!(fs::read(out.join("motd")).unwrap(), b"hello\n");
    assert!(out.join("init d").is_dir());
}

#[test]
fn output_goes_into_commands_and_files_of_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    let before = fs::read(&image).unwrap();
    let out = dir.path().join("out");
    let (file, itself) = (out.display(), image.display());
    let lines = format!(
        "pwd\nls etc | tr a-z A-Z | sort -r\ncat etc/motd > {file}\ncat etc/motd>>'{file}'\ncat etc/motd | true\n\
         ls 'a|b' | cat\npwd\n"
    );
    let ran = shell(&image, &[], &lines);
    assert_eq!((ran.code, told(&ran).as_str()), (Some(1), "/\nMOTD\nINIT D\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("/a|b: no such file"), "{}", ran.stderr);
    assert_eq!(fs::read(&out).unwrap(), b"hello\nhello\n");
    let ran = shell(&image, &[], &format!("cat etc/motd > {itself}\n"));
    assert!(ran.code == Some(1) && ran.stderr.contains("is the image that is read"), "{}", ran.stderr);
    let ran = shell(&image, &[], "ls |\n");
    assert!(ran.code == Some(2) && ran.stderr.contains("a command of the host"), "{}", ran.stderr);
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
