//! Layers, images and archives as sources of `extant build`: what they hide, their access lists,
//! and how an image is selected.

use crate::testbed::{assert_same, extant, fsck, have, look, mounted, place, run};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packs names of a directory in order, without anything below them.
fn pack(dir: &Path, names: &[&str]) -> PathBuf {
    let archive = dir.with_extension("tar");
    let mut args = vec!["--no-recursion", "-cf", archive.to_str().unwrap(), "-C", dir.to_str().unwrap()];
    args.extend(names);
    run("tar", &args);
    archive
}

fn names(image: &Path, path: &str) -> String {
    extant(["ls", "-a", &place(image, path)]).clean_text().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn whiteouts_mean_the_directories_that_a_layer_lists() {
    if !have("tar") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let file = |name: &str| {
        fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        fs::write(path(name), name).unwrap();
    };
    for name in ["base/d/f", "base/a/f", "base/a/g"] {
        file(name);
    }
    for name in ["listed/l/.wh.f", "listed/l/g", "implied/l/.wh.f", "implied/l/g"] {
        file(name);
    }
    symlink("d", path("base/l")).unwrap();
    // The marks are in a directory; in the archive they come after a file of the directory's name.
    fs::create_dir_all(path("becomes/a")).unwrap();
    fs::write(path("becomes/a/.wh.f"), b"").unwrap();
    let listed = pack(&path("listed"), &["l", "l/.wh.f", "l/g"]);
    let implied = pack(&path("implied"), &["l/.wh.f", "l/g"]);
    let becomes = pack(&path("becomes"), &["a/.wh.f"]);
    fs::remove_dir_all(path("becomes/a")).unwrap();
    fs::write(path("becomes/a"), b"new").unwrap();
    run("tar", &["-rf", becomes.to_str().unwrap(), "-C", path("becomes").to_str().unwrap(), "a"]);

    let image = path("image");
    let build = |layers: &[&Path]| {
        let base = path("base");
        extant(["build", "--size", "16M", "-o", image.to_str().unwrap(), base.to_str().unwrap()]).clean();
        let mut args = vec!["build", "--layers", "--into", image.to_str().unwrap()];
        args.extend(layers.iter().map(|layer| layer.to_str().unwrap()));
        extant(args).clean();
        fsck(&image);
    };
    // A directory replaces the link; the link's target stays.
    build(&[&listed]);
    assert_eq!((names(&image, "/l"), names(&image, "/d")), ("g".into(), "f".into()));
    build(&[&implied]);
    assert_eq!((names(&image, "/l/"), names(&image, "/d")), ("g".into(), "g".into()));
    build(&[&becomes]);
    assert_eq!(extant(["cat", &place(&image, "/a")]).clean(), b"new");
}

#[test]
fn a_mode_follows_its_access_list_wherever_it_comes_from() {
    if !have("bsdtar") || !have("tar") || !have("setfacl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let source = path("source");
    fs::create_dir_all(source.join("d")).unwrap();
    fs::create_dir_all(source.join("d/no-default")).unwrap();
    let mode =
        |name: &str, mode| fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    for (name, before, list) in [
        ("f", 0o600, "u:33:r"),
        ("g", 0o4751, "g:7:rwx"),
        ("d/no-default", 0o750, "g:7:rx"),
        ("d", 0o1700, "u:33:rwx,d:u:33:r"),
    ] {
        if !source.join(name).is_dir() {
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
        archive("gnu-acls.tar", "tar", &["--acls", "--format=pax"]),
        archive("gnu-both.tar", "tar", &["--acls", "--xattrs", "--xattrs-include=*", "--format=pax"]),
    ];
    let image = path("image");
    let check = |what: &str, below: &str| {
        fsck(&image);
        let Some(mount) = mounted(&image, "ro,user_xattr,acl") else { return };
        let mut seen = look(&mount.path().join(below));
        // Not every archive format keeps fractions of a second.
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
        // Over files with the same names and other lists.
        for _ in 0..2 {
            extant(["build", "--into", to, source]).clean();
            check(&format!("{source} into"), "");
        }
    }
    extant(["mkfs", to, "8M"]).clean();
    extant(["put", "-r", source.to_str().unwrap(), &place(&image, "/c")]).clean();
    check("put -r", "c");
}

#[test]
fn an_image_of_several_is_asked_for_by_option() {
    if !have("tar") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("docker")).unwrap();
    for n in ["1", "2"] {
        fs::write(path(n), n).unwrap();
        run(
            "tar",
            &[
                "-cf",
                path(&format!("docker/{n}.tar")).to_str().unwrap(),
                "-C",
                dir.path().to_str().unwrap(),
                n,
            ],
        );
        let sum = run("sha256sum", &[path(&format!("docker/{n}.tar")).to_str().unwrap()]);
        let config = format!(r#"{{"rootfs":{{"diff_ids":["sha256:{}"]}}}}"#, &sum[..64]);
        fs::write(path(&format!("docker/{n}.json")), config).unwrap();
    }
    let of = |n| format!(r#"{{"Config":"{n}.json","RepoTags":["x:{n}"],"Layers":["{n}.tar"]}}"#);
    fs::write(path("docker/manifest.json"), format!("[{},{}]", of("1"), of("2"))).unwrap();
    let (source, image) = (path("docker"), path("image"));
    let (source, to) = (source.to_str().unwrap(), image.to_str().unwrap());
    let told = extant(["build", "-o", to, source]);
    assert_eq!(told.code, Some(1));
    let expected = "several images (\"x:1\", \"x:2\"); choose one with --image or --platform";
    assert!(told.stderr.contains(expected), "{}", told.stderr);
    extant(["build", "-o", to, "--image", "x:2", source]).clean();
    assert_eq!(names(&image, "/"), "2 lost+found");
    let told = extant(["build", "--into", to, source]);
    assert!(told.stderr.contains(expected), "{}", told.stderr);
    extant(["mkfs", to, "8M"]).clean();
    extant(["build", "--into", to, "--image", "x:1", source]).clean();
    assert_eq!(names(&image, "/"), "1 lost+found");
}

#[test]
fn an_archive_that_holds_too_much_is_refused_with_advice() {
    if !have("tar") || !have("gzip") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let bomb = fs::File::create(path("bomb")).unwrap();
    bomb.set_len(64 << 20).unwrap();
    let archive = path("bomb.tar.gz");
    let (archive, at) = (archive.to_str().unwrap(), dir.path().to_str().unwrap());
    run("tar", &["-czf", archive, "-C", at, "bomb"]);
    let image = path("image");
    let to = image.to_str().unwrap();
    let told = extant(["build", "--size", "4M", "-o", to, archive]);
    assert_eq!(told.code, Some(1));
    assert!(
        told.stderr.contains("with \"bomb\" its contents come to more than 4194304 bytes"),
        "{}",
        told.stderr
    );
    assert!(told.stderr.contains("ask for a larger --size, or for --size exact"), "{}", told.stderr);
    assert!(!image.exists());
    extant(["mkfs", to, "4M"]).clean();
    let told = extant(["build", "--into", to, archive]);
    assert!(told.stderr.contains("and the volume has 4194304"), "{}", told.stderr);
    fsck(&image);
}

#[test]
fn a_link_to_nothing_leads_to_the_same_place_in_an_image_and_in_a_volume() {
    if !have("tar") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // Names and contents of the lower layer (those with -> are links), then of the upper one, of
    // which directories are not listed; and what is to be in the image.
    type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a [&'a str]);
    let cases: [Case<'_>; 6] = [
        (&["a->b"], &["a/f"], &["a -> b", "b/f"]),
        (&["a->b/c/../e"], &["a/s/f"], &["a -> b/c/../e", "b/c", "b/e/s/f"]),
        (&["d/a->/b"], &["d/a/f"], &["d/a -> /b", "b/f"]),
        (&["a->f", "f"], &["a/g"], &["a -> f", "f/g"]),
        // A file of the same layer at the link's end is kept.
        (&["a->c"], &["a/b/x", "c"], &["a -> c", "c"]),
        (&["a->c"], &["a/b/x", "c/b"], &["a -> c", "c/b"]),
    ];
    for (n, (lower, upper, expected)) in cases.into_iter().enumerate() {
        let pack = |layer: &str, names: &[&str]| {
            let top = path(&format!("{layer}{n}"));
            let mut listed = Vec::new();
            for name in names {
                let (name, target) = name.split_once("->").map_or((*name, None), |(a, b)| (a, Some(b)));
                fs::create_dir_all(top.join(name).parent().unwrap()).unwrap();
                match target {
                    Some(target) => symlink(target, top.join(name)).unwrap(),
                    None => fs::write(top.join(name), name).unwrap(),
                }
                listed.push(name);
            }
            pack(&top, &listed)
        };
        let (lower, upper) = (pack("lower", lower), pack("upper", upper));
        let (both, added) = (path("both"), path("added"));
        let build = |image: &Path, layers: &[&Path]| {
            let mut args = vec!["build", "--layers", "--size", "8M", "-o", image.to_str().unwrap()];
            args.extend(layers.iter().map(|layer| layer.to_str().unwrap()));
            extant(args).clean();
            fsck(image);
        };
        build(&both, &[&lower, &upper]);
        build(&added, &[&lower]);
        extant(["build", "--layers", "--into", added.to_str().unwrap(), upper.to_str().unwrap()]).clean();
        fsck(&added);
        let tree = |image: &Path| extant(["ls", "-aR", image.to_str().unwrap()]).clean_text();
        let [built, merged] = [&both, &added].map(|image| tree(image));
        assert_eq!(built, merged, "case {n}");
        for name in expected {
            let (name, target) = name.split_once(" -> ").map_or((*name, None), |(a, b)| (a, Some(b)));
            let shown = extant(["ls", "-l", "-d", &place(&added, &format!("/{name}"))]).clean_text();
            assert!(target.is_none_or(|target| shown.contains(&format!("-> {target}"))), "case {n}: {shown}");
        }
    }
}
