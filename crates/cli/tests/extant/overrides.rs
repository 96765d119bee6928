//! Options of `build` that override its sources: without access lists or attributes, with a device
//! table, with SELinux labels.

use crate::testbed::{extant, fsck, have, mke2fs, place, run};
use std::fs;
use std::path::{Path, PathBuf};

/// An archive of `bin/tool`, which has an attribute and an access list.
fn archive(dir: &Path) -> PathBuf {
    let mut tar = tar::Builder::new(Vec::new());
    let list = &b"user::rw-,user:7:rwx,group::r--,mask::rwx,other::---"[..];
    tar.append_pax_extensions([("SCHILY.xattr.user.note", &b"x"[..]), ("SCHILY.acl.access", list)]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(3);
    header.set_mode(0o670);
    header.set_mtime(1_600_000_000);
    tar.append_data(&mut header, "bin/tool", &b"run"[..]).unwrap();
    let path = dir.join("app.tar");
    fs::write(&path, tar.into_inner().unwrap()).unwrap();
    path
}

/// The mode of a file, and the names and values of its attributes.
fn seen(image: &Path, path: &str) -> (u64, Vec<(String, String)>) {
    let told = extant(["stat", "--json", &place(image, path)]).clean();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let xattrs = told["xattrs"].as_array().unwrap().iter();
    (
        told["mode"].as_u64().unwrap(),
        xattrs.map(|xattr| (text(&xattr["name"]), text(&xattr["value"]))).collect(),
    )
}

#[test]
fn lists_and_attributes_are_left_out_where_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (tar, image) = (archive(dir.path()), dir.path().join("image"));
    let (tar, output) = (tar.to_str().unwrap(), image.to_str().unwrap());
    let note = ("user.note".to_owned(), "x".to_owned());
    for (options, mode, names) in [
        (&[][..], 0o670, &["system.posix_acl_access", "user.note"][..]),
        (&["--no-xattrs"], 0o670, &["system.posix_acl_access"]),
        (&["--no-acls"], 0o640, &["user.note"]),
        (&["--no-acls", "--no-xattrs"], 0o640, &[]),
    ] {
        extant([&["build", tar, "-o", output], options].concat()).clean();
        let (there, xattrs) = seen(&image, "/bin/tool");
        let mut found: Vec<&str> = xattrs.iter().map(|(name, _)| &name[..]).collect();
        found.sort_unstable();
        assert_eq!((there, &found[..]), (mode, names), "{options:?}");
        assert!(!names.contains(&"user.note") || xattrs.contains(&note), "{options:?}");
        fsck(&image);
    }
}

#[test]
fn devices_come_from_a_table_and_labels_from_a_policy() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (tar, image) = (archive(dir.path()), dir.path().join("image"));
    let (table, policy) = (dir.path().join("table"), dir.path().join("file_contexts"));
    fs::write(&table, "/dev d 755 0 0 - - - - -\n/dev/tty c 666 0 5 4 0 0 1 2\n/bin/tool f 4711 8 9\n")
        .unwrap();
    fs::write(&policy, "/.* u:default\n/(opt/)?bin/[^/]* -- u:bin\n/dev/.* -c u:dev\n").unwrap();
    let [tar, table, policy] = [&tar, &table, &policy].map(|path| path.to_str().unwrap());
    let lists = ["--device-table", table, "--file-contexts", policy];
    extant([&["build", tar, "-o", image.to_str().unwrap()], &lists[..]].concat()).clean();
    fsck(&image);
    let told = extant(["ls", "-lR", image.to_str().unwrap()]).clean_text();
    let line =
        |path: &str| told.lines().find(|line| line.ends_with(path)).unwrap_or_else(|| panic!("{told}"));
    assert!(line("dev/tty1").starts_with("crw-rw-rw-") && line("dev/tty1").contains("4, 1"), "{told}");
    assert!(line("bin/tool").starts_with("-rws--x--x"), "{told}");
    let label = |path: &str| {
        let get = format!("ea_get -x {path} security.selinux");
        run("debugfs", &["-R", &get, image.to_str().unwrap()]).replace([' ', ':'], "")
    };
    let hex = |text: &str| text.bytes().chain([0]).map(|byte| format!("{byte:02x}")).collect::<String>();
    for (path, expected) in
        [("/bin/tool", "u:bin"), ("/bin", "u:default"), ("/", "u:default"), ("/dev/tty0", "u:dev")]
    {
        assert!(label(path).contains(&hex(expected)), "{path}: {}", label(path));
    }

    // Into a directory of a volume: labels follow the path there.
    mke2fs(&image, "8M", &["-t", "ext4"]);
    let into = place(&image, "/opt");
    extant(["build", tar, "--into", &into, "--file-contexts", policy]).clean();
    fsck(&image);
    assert!(label("/opt/bin/tool").contains(&hex("u:bin")), "{}", label("/opt/bin/tool"));

    // Names of owners are those of the volume, unless the sources have lists of their own.
    let etc = dir.path().join("users/etc");
    fs::create_dir_all(&etc).unwrap();
    fs::write(etc.join("passwd"), "service:x:77:88::/:/bin/false\n").unwrap();
    fs::write(etc.join("group"), "service:x:88:\n").unwrap();
    let users = etc.parent().unwrap().to_str().unwrap();
    extant(["build", users, "--into", image.to_str().unwrap()]).clean();
    fs::write(table, "/bin/tool f 4711 service service\n").unwrap();
    extant(["build", tar, "--into", &into, "--device-table", table]).clean();
    let manifest = dir.path().join("owners.mtree");
    fs::write(&manifest, "#mtree\n./pipe type=fifo uname=service gname=service\n").unwrap();
    extant(["build", manifest.to_str().unwrap(), "--into", &into]).clean();
    fsck(&image);
    for path in ["/opt/bin/tool", "/opt/pipe"] {
        let told = run("debugfs", &["-R", &format!("stat {path}"), image.to_str().unwrap()]);
        let words = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("User: 77 Group: 88"), "{path}: {told}");
    }

    fs::write(policy, "/.* u:default\n/b(.* u:b\n").unwrap();
    fs::write(table, "/dev d 755 root 0\n/none f 644 0 0\n").unwrap();
    let unknown = format!("{table}.unknown");
    fs::write(&unknown, "/dev d 755 nobdy7 0\n").unwrap();
    let before = fs::read(&image).unwrap();
    for (option, list, told) in [
        ("--device-table", table, "table, line 2: there is no /none"),
        ("--device-table", &unknown, "table.unknown, line 1: neither /etc/passwd of the sources nor"),
        ("--file-contexts", policy, "file_contexts, line 2: /b(.*: "),
    ] {
        let ran = extant(["build", tar, "-o", image.to_str().unwrap(), option, list]);
        assert!(ran.code == Some(1) && ran.stderr.contains(told), "{}", ran.stderr);
    }
    assert!(fs::read(&image).unwrap() == before);
    let ran = extant(["build", tar, "--into", &into, "--device-table", &unknown]);
    assert!(ran.stderr.contains("line 1: neither /etc/passwd of the volume nor that of this"), "{ran:?}");
}
