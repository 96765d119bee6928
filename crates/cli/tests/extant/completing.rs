//! Completion of paths in images, in the shells that are installed.

use crate::testbed::{extant, have};
use std::fs;
use std::path::Path;
use std::process::Command;

/// An image `a.img` in a directory, with some names.
fn image(dir: &Path) {
    let source = dir.join("source");
    for name in ["etc/ssl", "etc/two words", "usr"] {
        fs::create_dir_all(source.join(name)).unwrap();
    }
    for name in ["etc/motd", "etc/mtab", "etc/.hidden", "etc/a:b"] {
        fs::write(source.join(name), "").unwrap();
    }
    extant(["build", source.to_str().unwrap(), "-o", dir.join("a.img").to_str().unwrap()]).clean();
}

/// Runs a script in a shell that has `extant` in its `PATH` and has loaded the completions.
fn said(dir: &Path, shell: &str, script: &str) -> Vec<String> {
    let mut paths = vec![Path::new(env!("CARGO_BIN_EXE_extant")).parent().unwrap().to_owned()];
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let mut command = Command::new(shell);
    let ran = command.current_dir(dir).env("PATH", std::env::join_paths(paths).unwrap()).args(["-c", script]);
    let ran = ran.env("HOME", dir).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_word_becomes_paths() {
    let dir = tempfile::tempdir().unwrap();
    image(dir.path());
    let at = |path: &str| format!("{}:{path}", dir.path().join("a.img").display());
    let become_ = |path: &str, line: &[&str]| {
        let ran = extant([&["complete-path", &at(path), "extant", "ls"][..], line].concat());
        let text = ran.clean_text();
        text.lines().map(|line| line.strip_prefix(&at("")).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(become_("/", &[]), ["/etc/", "/lost+found/", "/usr/"]);
    assert_eq!(become_("/etc/m", &["-l"]), ["/etc/motd", "/etc/mtab"]);
    assert_eq!(become_("/etc/.", &[]), ["/etc/.hidden"]);
    assert_eq!(become_("/etc/a:", &[]), ["/etc/a:b"]);
    for (path, line) in [("/none/x", &[][..]), ("/etc/motd/x", &[]), ("/etc", &["--partition", "3"])] {
        assert_eq!(become_(path, line), Vec::<String>::new());
    }
    for word in ["none.img:/", "source", "nbd://none.invalid/x:/e", ":/"] {
        extant(["complete-path", word]).clean();
    }
}

#[test]
fn bash_completes_behind_the_colon() {
    if !have("bash") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    image(dir.path());
    let completed = |words: &str, count: usize| {
        let script = format!(
            "source <(extant completions bash); COMP_WORDS=({words}); COMP_CWORD={count}; \
             _extant_or_image extant \"${{COMP_WORDS[COMP_CWORD]}}\" extant; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        said(dir.path(), "bash", &script)
    };
    // Words as readline breaks them.
    assert_eq!(completed("extant ls -l a.img : /etc/m", 5), ["/etc/motd", "/etc/mtab"]);
    assert_eq!(completed("extant cat a.img : /u", 4), ["/usr/"]);
    assert_eq!(completed("extant cat a.img : '/etc/two\\ w'", 4), ["/etc/two words/"]);
    assert_eq!(completed("extant cat a.img : /etc/a : ''", 6), ["b"]);
    assert_eq!(completed("extant sh", 1), ["shrink", "shell"]);
    assert_eq!(completed("extant comp", 1), ["completions"], "hidden commands are not offered");
}

#[test]
fn fish_and_zsh_complete_paths() {
    let dir = tempfile::tempdir().unwrap();
    image(dir.path());
    if have("fish") {
        let script = "extant completions fish | source; complete -C 'extant ls a.img:/etc/m'";
        assert_eq!(said(dir.path(), "fish", script), ["a.img:/etc/motd", "a.img:/etc/mtab"]);
        let script = "extant completions fish | source; complete -C 'extant shri'";
        assert!(said(dir.path(), "fish", script)[0].starts_with("shrink"));
    }
    if have("zsh") {
        // Outside a line editor there is nothing to complete; what would be offered is printed.
        let script = "compdef() {}; compadd() { print -l -- \"${@:#-*}\" }; source <(extant completions zsh); \
                      words=(extant ls a.img:/etc/m); PREFIX=a.img:/etc/m; _extant";
        let said: Vec<_> =
            said(dir.path(), "zsh", script).into_iter().filter(|line| !line.is_empty()).collect();
        assert_eq!(said, ["a.img:/etc/motd", "a.img:/etc/mtab"]);
    }
}
