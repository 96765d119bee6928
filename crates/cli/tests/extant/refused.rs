//! A command that is refused leaves every byte of the image as it was.

use crate::testbed::{extant, fsck, have, mke2fs, place, run};

#[test]
fn attributes_of_one_command_are_set_together_or_not_at_all() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for options in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext2", "-b", "1024", "-I", "128"],
        &["-t", "ext4", "-b", "1024", "-O", "ea_inode,quota"],
    ] {
        mke2fs(&image, "8M", options);
        let at = |path: &str| place(&image, path);
        extant(["truncate", "-s", "0", &at("/f"), &at("/g")]).clean();
        let names = |path: &str| run("debugfs", &["-R", &format!("ea_list {path}"), image.to_str().unwrap()]);
        let long = |name: &str, length: usize| format!("user.{name}={}", "v".repeat(length));
        // The second value fits nowhere, or the second name is refused.
        for second in [long("b", 70_000), "other.b=1".into(), "security.capability=x".into()] {
            let ran = extant(["xattr", "-s", "user.a=1", "-s", &second, "-s", "user.c=3", &at("/f")]);
            assert_eq!(ran.code, Some(1), "{options:?}: {}", ran.stderr);
            assert!(!names("/f").contains("user."), "{options:?} {second}");
        }
        let kept = [long("in", 20), long("block", 400), "security.x=1".into(), long("more", 200)];
        let mut args = vec!["xattr"];
        args.extend(kept.iter().flat_map(|set| ["-s", set.as_str()]));
        let (f, g) = (at("/f"), at("/g"));
        args.extend([f.as_str(), g.as_str()]);
        extant(args).clean();
        fsck(&image);
        for path in ["/f", "/g"] {
            let listed = names(path);
            for name in ["user.in (20)", "user.block (400)", "security.x (1)", "user.more (200)"] {
                assert!(listed.contains(name), "{options:?} {name}: {listed}");
            }
        }
        // What one change gives back, the next may use.
        extant(["xattr", "-x", "user.block", "-x", "user.more", "-s", &long("new", 700), &at("/f")]).clean();
        fsck(&image);
        assert!(names("/f").contains("user.new (700)") && !names("/f").contains("user.more"));
        let ran = extant(["xattr", "-s", "user.z=1", "-x", "user.none", &at("/f")]);
        assert!(ran.code == Some(1) && ran.stderr.contains("user.none"), "{}", ran.stderr);
        assert!(!names("/f").contains("user.z"));
        if options.concat().contains("ea_inode") {
            let (one, two) = (long("one", 3000), long("two", 9000));
            extant(["xattr", "-s", &one, "-s", &two, "-s", "user.three=3", &at("/g")]).clean();
            fsck(&image);
            assert!(names("/g").contains("user.two (9000)") && names("/g").contains("user.three (1)"));
            extant(["xattr", "-x", "user.one", "-x", "user.two", &at("/g")]).clean();
            fsck(&image);
        }
    }
}
