//! Volumes built from archives and OCI layouts equal those built from the packed directory.

mod common;

use common::*;
use extant_format::BlockSize;
use extant_image::{BuildError, BuildReport, Source, VolumeOptions};
use std::fs;
use std::path::{Path, PathBuf};

fn build_from(sources: &[Source], output: &Path) -> Result<BuildReport, BuildError> {
    try_build(&options(output.to_path_buf()), sources)
}

/// Packs a directory with GNU tar.
fn pack(dir: &Path, archive: &Path, args: &[&str]) -> bool {
    let mut all =
        vec!["--numeric-owner", "--sort=name", "-C", dir.to_str().unwrap(), "-cf", archive.to_str().unwrap()];
    all.extend(args);
    all.push(".");
    must("tar", &all)
}

fn source() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    make_source(&source);
    // GNU tar does not pack sockets.
    let _ = fs::remove_file(source.join("devices/socket"));
    set_times(&source);
    (dir, source)
}

const XATTRS: [&str; 3] = ["--xattrs", "--xattrs-include=*", "--format=pax"];

#[test]
fn pax_archive_with_everything_gives_the_bytes_of_the_directory() {
    let (dir, source) = source();
    let archive = dir.path().join("a.tar");
    if !pack(&source, &archive, &[&XATTRS[..], &["--sparse"]].concat()) {
        return;
    }
    let (from_tar, from_dir) = (dir.path().join("tar.img"), dir.path().join("dir.img"));
    build_from(&[Source::Tar(archive)], &from_tar).unwrap();
    assert_clean(&from_tar);
    assert_kernel_sees(&from_tar, &source);
    build_from(&[Source::Directory(source)], &from_dir).unwrap();
    assert_eq!(sha256(&from_tar), sha256(&from_dir));
}

#[test]
fn every_compression_gives_the_same_bytes() {
    let (dir, source) = source();
    let plain = dir.path().join("a.tar");
    if !pack(&source, &plain, &XATTRS) {
        return;
    }
    let expected = dir.path().join("expected.img");
    build_from(&[Source::Guess(plain.clone())], &expected).unwrap();
    let expected = sha256(&expected);
    for (tool_name, suffix) in [("gzip", "gz"), ("zstd", "zst"), ("xz", "xz")] {
        // Two members in sequence: a stream may have several.
        let bytes = fs::read(&plain).unwrap();
        let mut packed = Vec::new();
        for (n, part) in [&bytes[..bytes.len() / 3], &bytes[bytes.len() / 3..]].into_iter().enumerate() {
            let path = dir.path().join(format!("part-{n}"));
            fs::write(&path, part).unwrap();
            let Some(output) = tool(tool_name, &["-c", path.to_str().unwrap()]) else { break };
            packed.extend(output.stdout);
        }
        if packed.is_empty() {
            continue;
        }
        let archive = dir.path().join(format!("a.tar.{suffix}"));
        fs::write(&archive, packed).unwrap();
        let image = dir.path().join("image");
        build_from(&[Source::Guess(archive)], &image).unwrap();
        assert_eq!(sha256(&image), expected, "{tool_name}");
    }
}

#[test]
fn archives_from_a_pipe() {
    let (dir, source) = source();
    let (plain, fifo) = (dir.path().join("a.tar"), dir.path().join("fifo"));
    if !pack(&source, &plain, &XATTRS) || !must("mkfifo", &[fifo.to_str().unwrap()]) {
        return;
    }
    let (bytes, to) = (fs::read(&plain).unwrap(), fifo.clone());
    let writer = std::process::Command::new("cp").arg(&plain).arg(&to).spawn().unwrap();
    let (piped, filed) = (dir.path().join("piped.img"), dir.path().join("filed.img"));
    build_from(&[Source::Guess(fifo)], &piped).unwrap();
    build_from(&[Source::Guess(plain)], &filed).unwrap();
    assert_eq!(sha256(&piped), sha256(&filed), "{} bytes", bytes.len());
    drop(writer.wait_with_output());
}

#[test]
fn sparse_files_of_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    make_sparse(&source.join("sparse"), &mut Bytes(11));
    // More ranges than fit in one header of the old format.
    let file = fs::File::create(source.join("fragments")).unwrap();
    file.set_len(100 << 20).unwrap();
    for n in 0..60 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[n; 5000], u64::from(n) * (1 << 20)).unwrap();
    }
    drop(file);
    fs::File::create(source.join("only-a-hole")).unwrap().set_len(50 << 20).unwrap();
    let long = "d".repeat(120);
    fs::create_dir(source.join(&long)).unwrap();
    make_sparse(&source.join(long).join("f".repeat(120)), &mut Bytes(12));
    set_whole_seconds(&source);
    let image = dir.path().join("image");
    for format in [
        &["--format=gnu"][..],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--sparse-version=1.0"],
    ] {
        let archive = dir.path().join("a.tar");
        if !pack(&source, &archive, &[format, &["--sparse"]].concat()) {
            return;
        }
        let report = build_from(&[Source::Tar(archive)], &image).unwrap();
        assert!(report.image_bytes < 8 << 20, "{format:?}: holes stay holes: {report:?}");
        assert_clean(&image);
        assert_kernel_sees(&image, &source);
    }
}

fn set_whole_seconds(dir: &Path) {
    assert!(must(
        "find",
        &[dir.to_str().unwrap(), "-depth", "-exec", "touch", "-h", "-d", "@1600000000", "{}", "+"]
    ));
}

#[test]
fn gnu_and_ustar_archives() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let deep = source.join("p".repeat(60)).join("q".repeat(60));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("r".repeat(60)), b"long path").unwrap();
    fs::write(source.join("first"), b"linked").unwrap();
    fs::hard_link(source.join("first"), source.join("second")).unwrap();
    std::os::unix::fs::symlink("first", source.join("symlink")).unwrap();
    set_whole_seconds(&source);
    let image = dir.path().join("image");
    let archive = dir.path().join("a.tar");
    for format in ["--format=ustar", "--format=gnu", "--format=pax"] {
        if !pack(&source, &archive, &[format]) {
            return;
        }
        build_from(&[Source::Tar(archive.clone())], &image).unwrap();
        assert_clean(&image);
        assert_kernel_sees(&image, &source);
    }
    // Names and targets that fit only in GNU's long headers.
    fs::write(source.join("n".repeat(250)), b"long name").unwrap();
    std::os::unix::fs::symlink("t".repeat(1000), source.join("far")).unwrap();
    set_whole_seconds(&source);
    assert!(pack(&source, &archive, &["--format=gnu"]));
    build_from(&[Source::Tar(archive)], &image).unwrap();
    assert_kernel_sees(&image, &source);
}

#[test]
fn sources_are_laid_over_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (lower, upper, both) = (dir.path().join("lower"), dir.path().join("upper"), dir.path().join("both"));
    for path in [&lower, &upper, &both] {
        fs::create_dir_all(path.join("dir")).unwrap();
    }
    for path in [&lower, &both] {
        fs::write(path.join("dir/below"), b"below").unwrap();
    }
    for path in [&upper, &both] {
        fs::write(path.join("dir/above"), b"above").unwrap();
        fs::write(path.join("replaced"), b"file now").unwrap();
        fs::create_dir(path.join("other")).unwrap();
    }
    fs::create_dir_all(lower.join("replaced/was/a/directory")).unwrap();
    fs::write(lower.join("other"), b"was a file").unwrap();
    for path in [&lower, &upper, &both] {
        set_whole_seconds(path);
    }
    let (archive, image) = (dir.path().join("upper.tar"), dir.path().join("image"));
    if !pack(&upper, &archive, &[]) {
        return;
    }
    for upper in [Source::Tar(archive), Source::Directory(upper)] {
        build_from(&[Source::Directory(lower.clone()), upper], &image).unwrap();
        assert_clean(&image);
        assert_kernel_sees(&image, &both);
    }
}

/// Writes blobs and an index as an OCI layout.
struct Layout {
    dir: PathBuf,
    layers: Vec<String>,
}

impl Layout {
    fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { dir, layers: Vec::new() }
    }

    fn blob(&self, bytes: &[u8]) -> (String, usize) {
        use sha2::Digest;
        let hex: String = sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        fs::write(self.dir.join("blobs/sha256").join(&hex), bytes).unwrap();
        (hex, bytes.len())
    }

    /// Adds a directory as a layer, compressed by a tool or plain.
    fn layer(&mut self, source: &Path, packer: Option<&str>) -> bool {
        let archive = self.dir.with_extension("layer");
        if !pack(source, &archive, &[]) {
            return false;
        }
        let (bytes, suffix) = match packer {
            None => (fs::read(&archive).unwrap(), String::new()),
            Some(name) => match tool(name, &["-c", archive.to_str().unwrap()]) {
                Some(output) => (output.stdout, format!("+{name}")),
                None => return false,
            },
        };
        let (hex, len) = self.blob(&bytes);
        self.layers.push(format!(
            r#"{{"mediaType":"application/vnd.oci.image.layer.v1.tar{suffix}","digest":"sha256:{hex}","size":{len}}}"#
        ));
        true
    }

    fn finish(&self) {
        let manifest = format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, self.layers.join(","));
        let (hex, len) = self.blob(manifest.as_bytes());
        let index = format!(
            r#"{{"schemaVersion":2,"manifests":[{{"digest":"sha256:{hex}","size":{len}}},
            {{"digest":"sha256:00","size":1,"platform":{{"os":"unknown","architecture":"unknown"}}}}]}}"#
        );
        fs::write(self.dir.join("index.json"), index).unwrap();
    }
}

#[test]
fn layers_hide_what_their_whiteouts_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str, text: &str| {
        fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        fs::write(path(name), text).unwrap();
    };
    write("1/etc/kept", "kept");
    write("1/etc/gone", "gone");
    write("1/etc/changed", "old");
    write("1/opaque/hidden/deep", "hidden");
    write("1/opaque/merged/below", "hidden");
    write("1/removed/tree", "removed");
    write("1/again", "first");
    write("2/etc/.wh.gone", "");
    write("2/etc/changed", "new");
    write("2/opaque/.wh..wh..opq", "");
    write("2/opaque/merged/above", "shown");
    write("2/opaque/shown", "shown");
    write("2/.wh.removed", "");
    write("2/.wh.again", "");
    write("3/again", "second");
    std::os::unix::fs::symlink("etc", path("3/link")).unwrap();
    write("4/link/through", "the link");
    write("expected/etc/kept", "kept");
    write("expected/etc/changed", "new");
    write("expected/etc/through", "the link");
    write("expected/opaque/merged/above", "shown");
    write("expected/opaque/shown", "shown");
    write("expected/again", "second");
    std::os::unix::fs::symlink("etc", path("expected/link")).unwrap();
    for tree in ["1", "2", "3", "4", "expected"] {
        set_whole_seconds(&path(tree));
    }
    let mut layout = Layout::new(path("layout"));
    for (tree, packer) in [("1", Some("gzip")), ("2", None), ("3", Some("zstd"))] {
        if !layout.layer(&path(tree), packer) {
            return;
        }
    }
    // The last layer has a file below a link of an earlier layer; it is placed where the link
    // leads.
    let archive = path("4.tar");
    let (four, to) = (path("4"), archive.to_str().unwrap().to_owned());
    assert!(must("tar", &["--numeric-owner", "-C", four.to_str().unwrap(), "-cf", &to, "link/through"]));
    let bytes = fs::read(archive).unwrap();
    let (hex, len) = layout.blob(&bytes);
    let kind = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    layout.layers.push(format!(r#"{{"mediaType":"{kind}","digest":"sha256:{hex}","size":{len}}}"#));
    layout.finish();

    let image = path("image");
    build_from(&[Source::Guess(path("layout"))], &image).unwrap();
    assert_clean(&image);
    assert_kernel_sees(&image, &path("expected"));
    let expected = sha256(&image);
    // The same from an archive of the layout, plain and compressed.
    let archive = path("layout.tar");
    assert!(pack(&path("layout"), &archive, &[]));
    build_from(&[Source::Guess(archive.clone())], &image).unwrap();
    assert_eq!(sha256(&image), expected);
    assert!(must("gzip", &[archive.to_str().unwrap()]));
    build_from(&[Source::Guess(path("layout.tar.gz"))], &image).unwrap();
    assert_eq!(sha256(&image), expected);
}

#[test]
fn a_platform_is_never_taken_for_another() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mut layout = Layout::new(dir.path().join("layout"));
    if !layout.layer(&tree, None) {
        return;
    }
    layout.finish();
    let build = |platform: &str| {
        let platform = Some(platform.into());
        let options = extant_image::BuildOptions { platform, ..options(dir.path().join("image")) };
        try_build(&options, &[Source::Oci(layout.dir.clone())])
    };
    // The manifest does not state a platform, so it may be for any.
    build("linux/arm64").unwrap();
    let index = layout.dir.join("index.json");
    let text = fs::read_to_string(&index).unwrap();
    let of = r#""platform":{"os":"linux","architecture":"amd64"},"digest""#;
    fs::write(&index, text.replacen(r#""digest""#, of, 1)).unwrap();
    build("linux/amd64").unwrap();
    let error = build("linux/arm64").unwrap_err().to_string();
    assert!(error.contains("no image for linux/arm64") && error.contains("linux/amd64"), "{error}");
}

#[test]
fn a_blob_that_is_no_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path().join("layout"));
    let fifo = layout.dir.join("blobs/sha256/00");
    if !must("mkfifo", &[fifo.to_str().unwrap()]) {
        return;
    }
    fs::write(layout.dir.join("index.json"), r#"{"manifests":[{"digest":"sha256:00","size":0}]}"#).unwrap();
    let error = build_from(&[Source::Oci(layout.dir)], &dir.path().join("image")).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn damaged_layouts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), vec![7; 5000]).unwrap();
    for packer in [None, Some("gzip")] {
        let mut layout = Layout::new(dir.path().join("layout"));
        if !layout.layer(&tree, packer) {
            return;
        }
        layout.finish();
        let image = dir.path().join("image");
        build_from(&[Source::Oci(layout.dir.clone())], &image).unwrap();
        fs::remove_file(&image).unwrap();
        // Corrupt one byte of every blob in turn.
        for blob in fs::read_dir(layout.dir.join("blobs/sha256")).unwrap() {
            let blob = blob.unwrap().path();
            let good = fs::read(&blob).unwrap();
            let mut bad = good.clone();
            let at = bad.len() / 2;
            bad[at] ^= 1;
            fs::write(&blob, &bad).unwrap();
            let error = build_from(&[Source::Oci(layout.dir.clone())], &image).unwrap_err();
            println!("{error}");
            fs::write(&blob, &good[..good.len() - 1]).unwrap();
            let error = build_from(&[Source::Oci(layout.dir.clone())], &image).unwrap_err();
            assert!(matches!(error, BuildError::Oci { .. }), "{error}");
            assert!(!image.exists());
            fs::write(&blob, good).unwrap();
        }
        fs::remove_dir_all(&layout.dir).unwrap();
    }
}

#[test]
fn a_hundred_thousand_empty_files_waste_no_space() {
    // More inodes than data blocks: groups shrink so that there are enough inodes.
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("a.tar");
    let mut bytes = Vec::new();
    for n in 0..100_000 {
        bytes.extend(empty_file(&format!("dir-{}/file-{n}", n / 500)));
    }
    bytes.extend([0; 1024]);
    fs::write(&archive, bytes).unwrap();
    for block in [1024, 4096] {
        let image = dir.path().join("image");
        let volume = VolumeOptions { block_size: BlockSize::from_bytes(block), ..Default::default() };
        let options = extant_image::BuildOptions { volume, ..options(image.clone()) };
        let report = try_build(&options, &[Source::Tar(archive.clone())]).unwrap();
        assert_clean(&image);
        assert!(report.free_bytes < report.image_bytes / 100 + (64 << 10), "{report:?}");
        let Some(mount) = Mount::new(&image, "rw") else { continue };
        assert_eq!(fs::read_dir(mount.path().join("dir-199")).unwrap().count(), 500);
    }
}

/// Header of an empty file, as written by a v7 tar.
fn empty_file(name: &str) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}
