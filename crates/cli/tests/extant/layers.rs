//! Layers, images and archives as sources of `extant build`: what they hide, what they say of access lists, and what is asked.

use crate::testbed::{assert_same, extant, fsck, have, look, mounted, place, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn a_mode_follows_its_access_list_wherever_it_comes_from() {
    if !have("bsdtar") || !have("tar") || !have("setfacl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let source = path("source");
    fs::create_dir_all(source.join("d")).unwrap();
    let mode =
        |name: &str, mode| fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    for (name, before, list) in
        [("f", 0o600, "u:33:r"), ("g", 0o4751, "g:7:rwx"), ("d", 0o1700, "u:33:rwx,d:u:33:r")]
    {
        if name != "d" {
            fs::write(source.join(name), name).unwrap();
        }
        mode(name, before);
        let set = Command::new("setfacl").args(["-m", list]).arg(source.join(name)).status();
        if !set.is_ok_and(|status| status.success()) {
            println!("skipped: the file system of the tests has no access lists");
            return;
        }
    }
    assert_eq!(fs::metadata(source.join("f")).unwrap().permissions().mode() & 0o777, 0o640, "the mask");
    let expected = look(&source);
    let archive = |name: &str, program: &str, options: &[&str]| {
        let to = path(name);
        let (from, file) = (source.to_str().unwrap(), to.to_str().unwrap());
        run(program, &[options, &["--numeric-owner", "-cf", file, "-C", from, "."]].concat());
        to
    };
    let sources = [
        source.clone(),
        archive("bsd.tar", "bsdtar", &["--acls"]),
        archive("gnu.tar", "tar", &["--xattrs", "--xattrs-include=*", "--format=pax"]),
    ];
    let image = path("image");
    let check = |what: &str, below: &str| {
        fsck(&image);
        let Some(mount) = mounted(&image, "ro,user_xattr,acl") else { return };
        let mut seen = look(&mount.path().join(below));
        // Fractions of a second are not kept by every archive.
        let mut expected = expected.clone();
        expected.values_mut().chain(seen.values_mut()).for_each(|seen| seen.modified = (0, 0));
        assert_same(what, &seen, &expected);
    };
    let to = image.to_str().unwrap();
    for source in &sources {
        let source = source.to_str().unwrap();
        extant(["build", "-o", to, source]).clean();
        check(source, "");
        extant(["mkfs", to, "8M"]).clean();
        // Over files of the same names, with other lists.
        for _ in 0..2 {
            extant(["build", "--into", to, source]).clean();
            check(&format!("{source} into"), "");
        }
    }
    extant(["mkfs", to, "8M"]).clean();
    extant(["put", "-r", source.to_str().unwrap(), &place(&image, "/c")]).clean();
    check("put -r", "c");
}
