//! Commands that replace a file leave it intact if they fail, and apply all of their work to the
//! same file.

use crate::testbed::{Ran, extant, extant_with, fsck, have, is_root, mke2fs, noise, place, run};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn volume(dir: &Path, size: &str, options: &[&str]) -> Option<PathBuf> {
    if !have("mke2fs") || !have("e2fsck") {
        return None;
    }
    let image = dir.join("image");
    mke2fs(&image, size, &[&["-E", "root_owner=0:0"], options].concat());
    Some(image)
}

/// Output of debugfs for a request.
fn ask(image: &Path, request: &str) -> String {
    run("debugfs", &["-R", request, image.to_str().unwrap()])
}

#[track_caller]
fn refused(ran: Ran, told: &str) {
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
}

/// Names in the root, except `lost+found`.
fn names(image: &Path) -> Vec<String> {
    let listed = extant(["ls", "-a", &place(image, "/")]).clean_text();
    let names = listed.split_whitespace().filter(|name| *name != "lost+found");
    names.map(str::to_owned).collect()
}

#[test]
fn a_link_that_cannot_be_made_leaves_what_it_was_to_replace() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4", "-b", "1024"]) else { return };
    let at = |path: &str| place(&image, path);
    let (old, other) = (dir.path().join("old"), dir.path().join("other"));
    fs::write(&old, b"precious").unwrap();
    fs::write(&other, b"other").unwrap();
    extant(["put", old.to_str().unwrap(), &at("/f")]).clean();
    extant(["put", other.to_str().unwrap(), &at("/other")]).clean();
    extant(["mkdir", &at("/d")]).clean();
    refused(extant(["ln", "-f", &at("/f"), &at("/f")]), "are the same");
    refused(extant(["ln", "-f", &at("/d/../f"), &at("/f")]), "are the same");
    refused(extant(["ln", "-f", &at("/nonexistent"), &at("/f")]), "nonexistent: no such file");
    refused(extant(["ln", "-sf", &"t".repeat(2000), &at("/f")]), "too long");
    refused(extant(["ln", "-sf", "f", &at("/f")]), "are the same");
    refused(extant(["ln", "-sf", "x", &at("/d")]), "is a directory");
    let script = extant_with(b"ln -f /nonexistent /f\n", ["edit".as_ref(), image.as_os_str()]);
    refused(script, "line 1: ");
    assert_eq!(extant(["cat", &at("/f")]).clean(), b"precious");
    assert_eq!(names(&image), ["d", "f", "other"]);
    fsck(&image);
    // If the name is already a link to the same file, nothing is to do; another file is replaced.
    extant(["ln", &at("/f"), &at("/g")]).clean();
    extant(["ln", "-f", &at("/f"), &at("/g")]).clean();
    extant(["ln", "-f", &at("/f"), &at("/d")]).clean();
    extant(["ln", "-f", &at("/f"), &at("/other")]).clean();
    assert!(ask(&image, "stat /other").contains("Links: 4 "));
    extant(["ln", "-sf", "g", &at("/other")]).clean();
    extant(["ln", "-sf", "elsewhere", &at("/other")]).clean();
    assert!(ask(&image, "stat /other").contains("elsewhere"));
    assert_eq!(names(&image), ["d", "f", "g", "other"]);
    fsck(&image);
}

#[test]
fn a_move_over_another_name_of_the_file_takes_the_old_name_away() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4"]) else { return };
    let at = |path: &str| place(&image, path);
    extant(["truncate", "-s", "3", &at("/a")]).clean();
    extant(["ln", &at("/a"), &at("/b")]).clean();
    refused(extant(["mv", &at("/a"), &at("/a")]), "the same file");
    extant(["mv", &at("/a"), &at("/b")]).clean();
    assert_eq!(names(&image), ["b"]);
    fsck(&image);
}

#[test]
fn a_file_that_is_put_at_a_link_is_all_where_the_link_leads() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4"]) else { return };
    let at = |path: &str| place(&image, path);
    let (old, tool) = (dir.path().join("old"), dir.path().join("tool"));
    fs::write(&old, b"old").unwrap();
    fs::write(&tool, b"tool").unwrap();
    if is_root() {
        run("chown", &["5:6", tool.to_str().unwrap()]);
    }
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o4755)).unwrap();
    rustix::fs::setxattr(&tool, "user.k", b"v", rustix::fs::XattrFlags::empty()).unwrap();
    extant(["put", "--all-root", old.to_str().unwrap(), &at("/real")]).clean();
    extant(["ln", &at("/real"), &at("/also")]).clean();
    extant(["ln", "-s", "also/../second", &at("/first")]).clean();
    extant(["ln", "-s", "/real", &at("/second")]).clean();
    extant(["ln", "-sf", "second", &at("/first")]).clean();
    extant(["ln", "-s", "made", &at("/dangling")]).clean();
    let link = ask(&image, "stat /first");
    for target in ["/first", "/dangling"] {
        extant(["put", tool.to_str().unwrap(), &at(target)]).clean();
    }
    fsck(&image);
    for real in ["/real", "/made"] {
        let stat = ask(&image, &format!("stat {real}"));
        assert!(stat.contains("Mode:  04755") && stat.contains("Links: 1 "), "{stat}");
        if is_root() {
            assert!(stat.contains("User:     5 ") && stat.contains("Group:     6 "), "{stat}");
        }
        assert!(ask(&image, &format!("ea_list {real}")).contains("user.k"));
        assert_eq!(extant(["cat", &at(real)]).clean(), b"tool");
    }
    // The link is unchanged, and another name of the file keeps the old one.
    assert_eq!(ask(&image, "stat /first"), link);
    assert_eq!(extant(["cat", &at("/also")]).clean(), b"old");
    assert!(ask(&image, "stat /also").contains("Mode:  0644"));

    // Same for a tree, through a link to a directory, and for two names of one file copied to one
    // name.
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("lib")).unwrap();
    fs::set_permissions(tree.join("lib"), fs::Permissions::from_mode(0o711)).unwrap();
    fs::write(tree.join("one"), b"both").unwrap();
    fs::hard_link(tree.join("one"), tree.join("two")).unwrap();
    symlink("new target", tree.join("soft")).unwrap();
    extant(["mkdir", "-p", &at("/tree/usr/lib")]).clean();
    extant(["ln", "-s", "usr/lib", &at("/tree/lib")]).clean();
    extant(["ln", "-s", "one", &at("/tree/two")]).clean();
    extant(["ln", "-s", "/real", &at("/tree/soft")]).clean();
    extant(["put", "-r", tree.to_str().unwrap(), &at("/")]).clean();
    fsck(&image);
    assert!(ask(&image, "stat /tree/lib").contains("Type: symlink"));
    assert!(ask(&image, "stat /tree/usr/lib").contains("Mode:  0711"));
    assert_eq!(extant(["cat", &at("/tree/two")]).clean(), b"both");
    assert!(ask(&image, "stat /tree/soft").contains("new target"));
    assert_eq!(extant(["cat", &at("/real")]).clean(), b"tool");
}

#[test]
fn an_attribute_without_room_is_named_and_the_file_that_was_there_stays() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4", "-b", "1024"]) else { return };
    let file = dir.path().join("file");
    fs::write(&file, b"old").unwrap();
    extant(["put", file.to_str().unwrap(), &place(&image, "/f")]).clean();
    fs::write(&file, b"new").unwrap();
    rustix::fs::setxattr(&file, "user.big", &noise(1, 3500), rustix::fs::XattrFlags::empty()).unwrap();
    let ran = extant(["put", file.to_str().unwrap(), &place(&image, "/f")]);
    assert!(!ran.stderr.contains(".put"), "{}", ran.stderr);
    refused(ran, "/f: no room for attribute user.big of 3500 bytes");
    assert_eq!(extant(["cat", &place(&image, "/f")]).clean(), b"old");
    assert_eq!(names(&image), ["f"]);
    fsck(&image);
}

#[test]
fn values_that_linux_would_refuse_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4"]) else { return };
    let f = place(&image, "/f");
    extant(["truncate", "-s", "0", &f]).clean();
    // user::rw-,user:1000:rw-,group::r--,mask::rw-,other::r--
    let list = "0x0200000001000600ffffffff02000600e803000004000400ffffffff10000600ffffffff20000400ffffffff";
    let capability = "0X010000020020000000000000000000000000000000000000";
    extant(["xattr", "-s", &format!("system.posix_acl_access={list}"), &f]).clean();
    refused(extant(["xattr", "-s", "system.posix_acl_access=junk", &f]), "is no access control list");
    refused(extant(["xattr", "-s", "security.capability=junk", &f]), "no file capability");
    refused(extant(["xattr", "-s", &format!("security.capability={capability}"), &f]), "no file capability");
    extant(["xattr", "-s", &format!("security.capability={}", &capability[..42]), &f]).clean();
    refused(extant(["xattr", "-s", "user.x=0x123", &f]), "hexadecimal");
    refused(extant(["xattr", "-s", "user.x=0xgg", &f]), "hexadecimal");
    let listed = ask(&image, "ea_list /f");
    assert!(listed.contains("posix_acl_access") && listed.contains("security.capability (20)"), "{listed}");
    assert!(ask(&image, "stat /f").contains("Mode:  0664"));
    assert_eq!(extant(["chown", "4294967295", &f]).code, Some(2));
    assert_eq!(extant(["chown", "1:", &f]).code, Some(2));
    fsck(&image);
}

#[test]
fn a_size_that_no_file_can_have_makes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4"]) else { return };
    extant(["ln", "-s", "made", &place(&image, "/link")]).clean();
    for path in ["/new", "/link"] {
        refused(extant(["truncate", "-s", "99999T", &place(&image, path)]), "larger than a file");
    }
    assert_eq!(names(&image), ["link"]);
    fsck(&image);
}

#[test]
fn volumes_of_the_hurd_are_read_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-o", "hurd"]) else { return };
    let before = fs::read(&image).unwrap();
    let ran = extant(["mkdir", &place(&image, "/a")]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert!(ran.stderr.contains("Hurd"), "{}", ran.stderr);
    assert!(fs::read(&image).unwrap() == before);
    assert!(extant(["ls", &place(&image, "/")]).clean_text().contains("lost+found"));
}
