//! Container images: from `docker save` and similar tools, OCI layouts with several images, and
//! hostile ones.

mod common;

use common::entries::{file, header, with_link};
use common::*;
use extant_image::{BuildError, BuildOptions, BuildReport, SizePolicy, Source, VolumeOptions};
use sha2::Digest;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

fn hex(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    [&entries.concat()[..], &[0; 1024]].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

/// Archives in a directory, and an image built from one of them.
struct Case {
    dir: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Source {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), bytes).unwrap();
        Source::Guess(self.path(name))
    }

    fn options(&self) -> BuildOptions {
        options(self.path("image"))
    }

    fn build(&self, options: &BuildOptions, source: &Source) -> Result<BuildReport, BuildError> {
        let _ = fs::remove_file(self.path("image"));
        let built = try_build(options, std::slice::from_ref(source));
        match &built {
            Ok(_) => assert_clean(&self.path("image")),
            Err(_) => assert!(!self.path("image").exists()),
        }
        built
    }

    /// Contents of a file in the built image.
    fn cat(&self, path: &str) -> String {
        let image = self.path("image");
        let shown = tool("debugfs", &["-R", &format!("cat {path}"), image.to_str().unwrap()]);
        String::from_utf8(shown.expect("e2fsprogs are there").stdout).unwrap()
    }

    fn error(&self, source: &Source) -> String {
        self.build(&self.options(), source).unwrap_err().to_string()
    }
}

/// The configuration of an image with these layers.
fn config(architecture: &str, layers: &[&[u8]]) -> Vec<u8> {
    let ids: Vec<_> = layers.iter().map(|layer| format!("\"sha256:{}\"", hex(layer))).collect();
    let ids = ids.join(",");
    format!(
        r#"{{"architecture":"{architecture}","os":"linux","rootfs":{{"type":"layers","diff_ids":[{ids}]}}}}"#
    )
    .into_bytes()
}

fn listed(config: &str, tags: &str, layers: &str) -> String {
    format!(r#"{{"Config":"{config}","RepoTags":{tags},"Layers":{layers}}}"#)
}

/// Two layers, and the archives that Docker, podman and crane create from them.
#[expect(clippy::type_complexity)] // two files, and archives by name
fn docker_archives() -> (Vec<u8>, Vec<u8>, Vec<(&'static str, Vec<u8>)>) {
    let lower = tar(&[header(b"etc/", b'5', 0), file(b"etc/os-release", b"ID=old"), file(b"gone", b"x")]);
    let upper = tar(&[file(b"etc/os-release", b"ID=x"), file(b".wh.gone", b"")]);
    let config = config("amd64", &[&lower, &upper]);
    let (a, b) = (hex(&lower), hex(&upper));
    let json = |layers: &str| format!("[{}]", listed("c.json", r#"["x:1"]"#, layers)).into_bytes();
    let named = |name: String, bytes: &[u8]| file(name.as_bytes(), bytes);
    let link =
        |name: &str, kind: u8, target: &str| with_link(header(name.as_bytes(), kind, 0), target.as_bytes());
    let ends = |layers: &str| {
        [file(b"c.json", &config), file(b"manifest.json", &json(layers)), file(b"repositories", b"{}")]
    };
    let docker = [
        &[
            named(format!("{}/layer.tar", "1"), &lower),
            file(b"1/VERSION", b"1.0"),
            named("2/layer.tar".into(), &upper),
        ][..],
        &ends(r#"["1/layer.tar","2/layer.tar"]"#),
    ];
    // The list refers to links, as when two images share a layer.
    let links = [
        &[named("1/layer.tar".into(), &lower), link("3/layer.tar", b'2', "../1/layer.tar")][..],
        &[named("2/layer.tar".into(), &upper), link("4/layer.tar", b'1', "2/layer.tar")],
        &ends(r#"["3/layer.tar","4/layer.tar"]"#),
    ];
    let podman = [
        &[named(format!("{a}.tar"), &lower), named(format!("{b}.tar"), &upper)][..],
        &[link("ab/layer.tar", b'2', &format!("../{a}.tar")), file(b"ab/VERSION", b"1.0")],
        &ends(&format!(r#"["{a}.tar","{b}.tar"]"#)),
    ];
    let crane = [
        &[named(format!("{a}.tar.gz"), &gzip(&lower)), named(format!("{b}.tar.gz"), &gzip(&upper))][..],
        &ends(&format!(r#"["{a}.tar.gz","{b}.tar.gz"]"#)),
    ];
    let archives = vec![
        ("docker", tar(&docker.concat())),
        ("links", tar(&links.concat())),
        ("podman", tar(&podman.concat())),
        ("crane", tar(&crane.concat())),
    ];
    (lower, upper, archives)
}

#[test]
fn docker_archives_are_their_image() {
    let case = Case::new();
    let (lower, upper, archives) = docker_archives();
    let layers = [case.write("1.tar", &lower), case.write("2.tar", &upper)];
    try_build(&BuildOptions { layers: true, ..case.options() }, &layers).unwrap();
    let expected = sha256(&case.path("image"));
    for (name, archive) in archives {
        let unpacked = case.path(name);
        let plain = case.write(&format!("{name}.tar"), &archive);
        let packed = case.write(&format!("{name}.tar.gz"), &gzip(&archive));
        fs::create_dir(&unpacked).unwrap();
        let tar = case.path(&format!("{name}.tar"));
        if !must("tar", &["-C", unpacked.to_str().unwrap(), "-xf", tar.to_str().unwrap()]) {
            return;
        }
        for source in [plain, packed, Source::Guess(unpacked.clone()), Source::Oci(unpacked)] {
            for layers in [false, true] {
                let report = case.build(&BuildOptions { layers, ..case.options() }, &source).unwrap();
                assert_eq!(report.notes, []);
                assert!(sha256(&case.path("image")) == expected, "{source:?}");
            }
        }
        // A later source is merged over it.
        let over = case.write("over.tar", &tar_of_one(b"etc/os-release", b"ID=over"));
        let source = Source::Guess(case.path(&format!("{name}.tar")));
        try_build(&case.options(), &[source, over]).unwrap();
        assert_eq!(case.cat("/etc/os-release"), "ID=over");
    }
}

fn tar_of_one(name: &[u8], contents: &[u8]) -> Vec<u8> {
    tar(&[file(name, contents)])
}

#[test]
fn archives_of_skopeo() {
    let case = Case::new();
    let text = |name: &str| case.path(name).to_str().unwrap().to_owned();
    let (layout, bundle) = (text("layout"), text("bundle"));
    let image = layout.clone() + ":one";
    if !must("umoci", &["init", "--layout", &layout]) || !rustix::process::geteuid().is_root() {
        return;
    }
    must("umoci", &["new", "--image", &image]);
    must("umoci", &["unpack", "--image", &image, &bundle]);
    let root = case.path("bundle/rootfs");
    for name in ["a", "b"] {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("file"), name).unwrap();
        let _ = fs::remove_file(root.join("a/file"));
        must("umoci", &["repack", "--refresh-bundle", "--image", &image, &bundle]);
    }
    case.build(&case.options(), &Source::Guess(layout.clone().into())).unwrap();
    let expected = sha256(&case.path("image"));
    assert_eq!(case.cat("/b/file"), "b");
    let from = format!("oci:{layout}:one");
    for (name, to) in [
        ("d.tar", format!("docker-archive:{}:x/y:1", text("d.tar"))),
        ("o.tar", format!("oci-archive:{}:y", text("o.tar"))),
        ("o", format!("oci:{}:y", text("o"))),
    ] {
        if !must("skopeo", &["--insecure-policy", "copy", "--quiet", &from, &to]) {
            return;
        }
        case.build(&case.options(), &Source::Guess(case.path(name))).unwrap();
        assert!(sha256(&case.path("image")) == expected, "{name}");
    }
}

#[test]
fn one_of_several_images_is_chosen_by_name() {
    let case = Case::new();
    let layers: Vec<_> = ["one", "two"].iter().map(|text| tar_of_one(b"f", text.as_bytes())).collect();
    let entries = |second: &str| {
        tar(&[
            file(b"1.tar", &layers[0]),
            file(b"2.tar", &layers[1]),
            file(b"1.json", &config("amd64", &[&layers[0]])),
            file(b"2.json", &config(second, &[&layers[1]])),
            file(
                b"manifest.json",
                format!(
                    "[{},{},{}]",
                    listed("1.json", r#"["a:1","a:latest"]"#, r#"["1.tar"]"#),
                    listed("2.json", "null", r#"["2.tar"]"#),
                    listed("1.json", r#"["b:1"]"#, r#"["1.tar"]"#)
                )
                .as_bytes(),
            ),
        ])
    };
    let docker = case.write("docker.tar", &entries("amd64"));
    let error = case.error(&docker);
    assert!(error.contains("several images (\"a:1\" or \"a:latest\", \"2.json\")"), "{error}");
    let choose = |source: &Source, image: Option<&str>, platform: Option<&str>| {
        let (image_name, platform) = (image.map(str::to_owned), platform.map(str::to_owned));
        let built = case.build(&BuildOptions { image_name, platform, ..case.options() }, source);
        built.map(|_| case.cat("/f")).map_err(|error| error.to_string())
    };
    for (name, text) in [("a:1", "one"), ("a:latest", "one"), ("b:1", "one"), ("2.json", "two")] {
        assert_eq!(choose(&docker, Some(name), None).unwrap(), text);
    }
    let error = choose(&docker, Some("c"), None).unwrap_err();
    assert!(error.contains("no image \"c\"; it has \"a:1\" or \"a:latest\", \"2.json\""), "{error}");
    let error = choose(&docker, None, Some("linux/arm64")).unwrap_err();
    assert!(error.contains("no image for linux/arm64"), "{error}");
    let docker = case.write("docker.tar", &entries("arm64"));
    assert_eq!(choose(&docker, None, Some("linux/arm64")).unwrap(), "two");
    assert_eq!(choose(&docker, None, Some("linux/amd64")).unwrap(), "one");

    // The same for layouts.
    let layout = |tags: &[(&str, usize)]| {
        let blob = |bytes: &[u8]| {
            case.write(&format!("oci/blobs/sha256/{}", hex(bytes)), bytes);
            format!("\"digest\":\"sha256:{}\",\"size\":{}", hex(bytes), bytes.len())
        };
        let manifests: Vec<_> = tags
            .iter()
            .map(|(tag, layer)| {
                let kind = "application/vnd.oci.image.layer.v1.tar";
                let layer = format!(r#"{{"mediaType":"{kind}",{}}}"#, blob(&layers[*layer]));
                let manifest = blob(format!(r#"{{"layers":[{layer}]}}"#).as_bytes());
                format!(r#"{{{manifest},"annotations":{{"org.opencontainers.image.ref.name":"{tag}"}}}}"#)
            })
            .collect();
        case.write("oci/oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
        case.write("oci/index.json", format!(r#"{{"manifests":[{}]}}"#, manifests.join(",")).as_bytes());
        Source::Guess(case.path("oci"))
    };
    // Two names of one image count as one image.
    let source = layout(&[("1.0", 0), ("latest", 0)]);
    assert_eq!(choose(&source, None, None).unwrap(), "one");
    let source = layout(&[("1.0", 0), ("2.0", 1)]);
    let error = choose(&source, None, Some("linux/amd64")).unwrap_err();
    assert!(error.contains("several images (\"1.0\", \"2.0\")"), "{error}");
    assert_eq!(choose(&source, Some("1.0"), None).unwrap(), "one");
    assert_eq!(choose(&source, Some("2.0"), Some("linux/amd64")).unwrap(), "two");
    let error = choose(&source, Some("3.0"), None).unwrap_err();
    assert!(error.contains("no image \"3.0\"; it has \"1.0\", \"2.0\""), "{error}");
}

#[test]
fn damaged_docker_archives_are_refused() {
    let case = Case::new();
    let (lower, upper, archives) = docker_archives();
    for (_, archive) in &archives {
        // Flip a byte in the layers' contents; in compressed ones, anywhere.
        for at in (1024..archive.len().min(4096)).step_by(331) {
            let mut bad = archive.clone();
            bad[at] ^= 1;
            let _ = case.build(&case.options(), &case.write("bad.tar", &bad));
        }
    }
    let with = |layers: &str, config: &[u8]| {
        let json = format!("[{}]", listed("c.json", "[]", layers));
        case.write(
            "bad.tar",
            &tar(&[
                file(b"1.tar", &lower),
                file(b"2.tar", &upper),
                file(b"c.json", config),
                file(b"manifest.json", json.as_bytes()),
                file(b"empty.tar", b""),
            ]),
        )
    };
    let right = config("amd64", &[&lower, &upper]);
    let swapped = config("amd64", &[&upper, &lower]);
    for (layers, config, told) in [
        (r#"["1.tar","3.tar"]"#, &right[..], "it has no 3.tar"),
        (r#"["1.tar","empty.tar"]"#, &right, "empty.tar is empty"),
        (r#"["1.tar"]"#, &right, "manifest.json lists 1 layers of c.json, and c.json has digests of 2"),
        (r#"["1.tar","2.tar"]"#, &swapped, "is damaged: its digest is sha256:"),
        (r#"["1.tar","2.tar"]"#, b"{}", "c.json is not as it should be"),
        (r#"["1.tar",7]"#, &right, "manifest.json is not as it should be"),
    ] {
        let error = case.error(&with(layers, config));
        assert!(error.contains("bad.tar\": ") && error.contains(told), "{error}");
    }
    let old = tar(&[file(b"repositories", b"{}"), file(b"1/layer.tar", &lower), file(b"1/json", b"{}")]);
    let error = case.error(&case.write("old.tar", &old));
    assert!(error.contains("before 1.10") && error.contains("save it again"), "{error}");
    // Next to layers, the file must be a valid list.
    for (list, told) in [
        (&b"{\"bad"[..], "EOF while parsing"),
        (b"[]", "it lists no image"),
        (b"{\"Layers\":[]}", "it lists no image"),
        (br#"[{"Config":"c.json"}]"#, "has no Layers"),
    ] {
        let entries = [file(b"c.json", &right), file(b"l/layer.tar", &lower), file(b"manifest.json", list)];
        let error = case.error(&case.write("bad.tar", &tar(&entries)));
        assert!(error.contains("manifest.json is not as it should be") && error.contains(told), "{error}");
    }
    let list = format!("\u{feff}[{}]", listed("c.json", "[]", r#"["l/layer.tar"]"#));
    let marked = [
        file(b"c.json", &config("amd64", &[&lower])),
        file(b"l/layer.tar", &lower),
        file(b"manifest.json", list.as_bytes()),
    ];
    case.build(&case.options(), &case.write("marked.tar", &tar(&marked))).unwrap();
    assert_eq!(case.cat("/etc/os-release"), "ID=old");
    // With any other content the list is just a file.
    for other in [&b"{}"[..], b"[]", b"[1]", b"{\"Layers\":[]}", b"no JSON"] {
        let site =
            case.write("site.tar", &tar(&[file(b"manifest.json", other), file(b"repositories", b"x")]));
        assert_eq!(case.build(&case.options(), &site).unwrap().files, 2);
    }
}

/// Writes a blob of a layout; returns the digest and size as in a descriptor.
fn blob(case: &Case, bytes: &[u8]) -> String {
    case.write(&format!("oci/blobs/sha256/{}", hex(bytes)), bytes);
    format!("\"digest\":\"sha256:{}\",\"size\":{}", hex(bytes), bytes.len())
}

/// Writes a layout with this list of descriptors.
fn layout(case: &Case, manifests: &str) -> Source {
    case.write("oci/oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    case.write("oci/index.json", format!(r#"{{"manifests":[{manifests}]}}"#).as_bytes());
    Source::Guess(case.path("oci"))
}

const LAYER: &str = r#""mediaType":"application/vnd.oci.image.layer.v1.tar""#;

#[test]
fn blobs_that_are_no_manifest_are_refused() {
    let case = Case::new();
    let refused = |manifest: &str| {
        let source = layout(&case, &format!("{{{}}}", blob(&case, manifest.as_bytes())));
        let error = case.error(&source);
        assert!(error.contains(&format!("sha256:{} is ", hex(manifest.as_bytes()))), "{error}");
        error
    };
    for (manifest, told) in [
        (r#"{"schemaVersion":1,"fsLayers":[{"blobSum":"sha256:0"}]}"#, "Docker's schema 1"),
        (r#"{"manifests":[]}"#, "an index that lists no image"),
        (r#"{"schemaVersion":2,"config":{}}"#, "neither a manifest nor an index"),
        (r#"{"foo":1}"#, "neither a manifest nor an index"),
        (r#"{"layers":[],"manifests":[]}"#, "both a manifest and an index"),
    ] {
        let error = refused(manifest);
        assert!(error.contains(told), "{error}");
    }
    // An image may have no layers.
    for none in ["[]", "null"] {
        let manifest = blob(&case, format!(r#"{{"layers":{none}}}"#).as_bytes());
        let report = case.build(&case.options(), &layout(&case, &format!("{{{manifest}}}"))).unwrap();
        assert_eq!(report.files, 0);
    }
    // An empty file is not an archive, compressed or not.
    for empty in [Vec::new(), gzip(b"")] {
        let manifest = format!(r#"{{"layers":[{{{LAYER},{}}}]}}"#, blob(&case, &empty));
        let source = layout(&case, &format!("{{{}}}", blob(&case, manifest.as_bytes())));
        let error = case.error(&source);
        assert!(error.contains(&hex(&empty)) && error.contains("the archive is empty"), "{error}");
    }
}

/// Descriptor of a manifest whose configuration is for this architecture.
fn manifest_for(case: &Case, architecture: &str) -> String {
    let layer = tar_of_one(b"f", architecture.as_bytes());
    let config = blob(case, &config(architecture, &[&layer]));
    let config = format!(r#"{{"mediaType":"application/vnd.oci.image.config.v1+json",{config}}}"#);
    let layer = format!("{{{LAYER},{}}}", blob(case, &layer));
    blob(case, format!(r#"{{"config":{config},"layers":[{layer}]}}"#).as_bytes())
}

#[test]
fn configurations_tell_the_platform_where_descriptors_do_not() {
    let case = Case::new();
    let choose = |source: &Source, image: Option<&str>, platform: Option<&str>| {
        let (image_name, platform) = (image.map(str::to_owned), platform.map(str::to_owned));
        let built = case.build(&BuildOptions { image_name, platform, ..case.options() }, source);
        built.map(|_| case.cat("/f")).map_err(|error| error.to_string())
    };
    let [amd64, arm64] = ["amd64", "arm64"].map(|name| manifest_for(&case, name));
    let one = layout(&case, &format!("{{{amd64}}}"));
    assert_eq!(choose(&one, None, Some("linux/amd64")).unwrap(), "amd64");
    let error = choose(&one, None, Some("linux/arm64")).unwrap_err();
    assert!(error.contains("no image for linux/arm64; it has linux/amd64"), "{error}");
    let two = layout(&case, &format!("{{{amd64}}},{{{arm64}}}"));
    assert_eq!(choose(&two, None, Some("linux/arm64")).unwrap(), "arm64");
    // Each of the images that the error lists can be selected.
    let named = |of: &str| {
        let platform = r#""platform":{"os":"linux","architecture":"x"}"#;
        format!(r#"{{{of},{platform},"annotations":{{"org.opencontainers.image.ref.name":"t"}}}}"#)
    };
    let same = layout(&case, &format!("{},{}", named(&amd64), named(&arm64)));
    let error = choose(&same, Some("t"), Some("linux/x")).unwrap_err();
    let digest = arm64.split('"').nth(3).unwrap();
    assert!(error.contains(&format!("\"t\" for linux/x as {digest}")), "{error}");
    assert_eq!(choose(&same, Some(digest), None).unwrap(), "arm64");
    // So can images in an index within the index.
    let nested = blob(&case, format!(r#"{{"manifests":[{{{amd64}}},{{{arm64}}}]}}"#).as_bytes());
    let nested =
        layout(&case, &format!(r#"{{"mediaType":"application/vnd.oci.image.index.v1+json",{nested}}}"#));
    let error = choose(&nested, None, None).unwrap_err();
    assert!(error.contains("several images") && error.contains(digest), "{error}");
    assert_eq!(choose(&nested, Some(digest), None).unwrap(), "arm64");
    assert_eq!(choose(&nested, None, Some("linux/amd64")).unwrap(), "amd64");
    let error = choose(&nested, Some("none"), None).unwrap_err();
    assert!(error.contains("no image \"none\"; it has sha256:"), "{error}");
}

/// Creates an OCI layout and an unpacked archive with one layer.
fn directories(case: &Case) -> [PathBuf; 2] {
    let layer = tar_of_one(b"f", b"f");
    let manifest = format!(
        r#"{{"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:{}","size":{}}}]}}"#,
        hex(&layer),
        layer.len()
    );
    let index = format!(
        r#"{{"manifests":[{{"digest":"sha256:{}","size":{}}}]}}"#,
        hex(manifest.as_bytes()),
        manifest.len()
    );
    case.write("oci/oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    case.write("oci/index.json", index.as_bytes());
    case.write("oci/blobs/sha256/manifest", manifest.as_bytes());
    for bytes in [&layer[..], manifest.as_bytes()] {
        case.write(&format!("oci/blobs/sha256/{}", hex(bytes)), bytes);
    }
    case.write("docker/c.json", &config("amd64", &[&layer]));
    case.write("docker/1/layer.tar", &layer);
    case.write(
        "docker/manifest.json",
        format!("[{}]", listed("c.json", "[]", r#"["1/layer.tar"]"#)).as_bytes(),
    );
    [case.path("oci"), case.path("docker")]
}

#[test]
fn files_of_an_image_are_files_within_it() {
    let case = Case::new();
    let dirs = directories(&case);
    let build = |dir: &Path| case.build(&case.options(), &Source::Guess(dir.to_owned()));
    let blob = fs::read(case.path("oci/blobs/sha256/manifest")).unwrap();
    let blob = format!("blobs/sha256/{}", hex(&blob));
    for (dir, files) in dirs
        .iter()
        .zip([&["oci-layout", "index.json", &blob][..], &["manifest.json", "c.json", "1/layer.tar"]])
    {
        assert_eq!(build(dir).unwrap().files, 1);
        for name in files {
            let (there, aside) = (dir.join(name), case.path("aside"));
            fs::rename(&there, &aside).unwrap();
            let refused = |told: &str| {
                let error = build(dir).unwrap_err().to_string();
                assert!(error.contains(name) && error.contains(told), "{error}");
                fs::remove_file(&there).unwrap();
            };
            assert!(must("mkfifo", &[there.to_str().unwrap()]));
            refused("not a regular file");
            std::os::unix::fs::symlink(&aside, &there).unwrap();
            refused("leads out of the image");
            std::os::unix::fs::symlink("../".repeat(1 + name.matches('/').count()) + "aside", &there)
                .unwrap();
            refused("leads out of the image");
            if rustix::process::geteuid().is_root() {
                assert!(must("mknod", &[there.to_str().unwrap(), "c", "1", "3"]));
                refused("not a regular file");
            }
            // A link that stays within the image is fine.
            fs::rename(&aside, dir.join("inside")).unwrap();
            std::os::unix::fs::symlink("../".repeat(name.matches('/').count()) + "inside", &there).unwrap();
            assert_eq!(build(dir).unwrap().files, 1, "{name}");
            fs::remove_file(&there).unwrap();
            fs::rename(dir.join("inside"), &there).unwrap();
        }
    }
    // A directory inside the layout is a link that leads outside.
    let blobs = case.path("oci/blobs");
    fs::rename(&blobs, case.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(case.path("elsewhere"), &blobs).unwrap();
    let error = build(&dirs[0]).unwrap_err().to_string();
    assert!(error.contains("blobs/sha256/") && error.contains("leads out of the image"), "{error}");
    fs::remove_file(&blobs).unwrap();
    let error = build(&dirs[0]).unwrap_err().to_string();
    assert!(error.contains("cannot open blobs/sha256/"), "{error}");
    // A name in the list that leads outside.
    for name in ["../c.json", "/etc/hostname"] {
        case.write(
            "docker/manifest.json",
            format!("[{}]", listed(name, "[]", r#"["1/layer.tar"]"#)).as_bytes(),
        );
        let error = build(&dirs[1]).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("leads out of the image"), "{error}");
    }
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

#[test]
fn no_more_is_spooled_than_fits_the_volume() {
    if !extant_testbed::can_mount() {
        return;
    }
    let case = Case::new();
    let volume = |bytes| VolumeOptions { size: SizePolicy::Fixed(bytes), ..Default::default() };
    let build = |sources: &[Source], bytes: u64, layers: bool| {
        // The spool is next to the image, where there is little room. Use a new mount for each
        // build, because a process that another test is starting may hold the previous spool, and
        // its room, for a moment.
        let small = Mount::small().expect("mounts are allowed");
        let volume = volume(bytes);
        try_build(&BuildOptions { volume, layers, ..options(small.path().join("image")) }, sources)
    };
    // A huge file is refused before any byte is spooled; the archive may be incomplete.
    let huge = case.write("huge.tar.zst", &zstd(&header(b"huge", b'0', 7 << 30)));
    let many: Vec<_> = (0..64).map(|n| file(format!("f{n}").as_bytes(), &vec![0; 256 << 10])).collect();
    let many = case.write("many.tar.zst", &zstd(&tar(&many)));
    for (source, path) in [(&huge, "\"huge\""), (&many, "\"f5\"")] {
        for layers in [false, true] {
            let error = build(std::slice::from_ref(source), 5 << 18, layers).unwrap_err();
            let told = error.to_string();
            assert!(matches!(error, BuildError::Overfull { given: 0x14_0000, .. }), "{told}");
            assert!(told.contains(path), "{told}");
        }
    }
    // Later sources could remove files, so more may be spooled, but not without limit.
    let after = case.write("after.tar", &tar_of_one(b"x", b"x"));
    let error = build(&[huge, after.clone()], 1 << 20, true).unwrap_err();
    assert!(matches!(error, BuildError::Overfull { limit: 0x80_0000, .. }), "{error}");
    let layer = |n: usize| file(format!("f{n}").as_bytes(), &vec![7; 700 << 10]);
    let removed = case.write("removed.tar.zst", &zstd(&tar(&[layer(1), layer(2)])));
    let removing = case.write("removing.tar.zst", &zstd(&tar(&[file(b".wh.f1", b""), layer(2)])));
    build(&[removed.clone(), removing], 1 << 20, true).unwrap();
    // A file that occurs several times in an archive counts once.
    let again = case.write("again.tar.zst", &zstd(&tar(&[layer(1), layer(1), layer(1)])));
    build(&[again], 1 << 20, false).unwrap();
    build(&[removed, after], 1 << 20, false).unwrap_err();
}

#[test]
fn layers_of_a_packed_image_may_be_larger_than_the_volume() {
    let case = Case::new();
    let lower = tar(&[file(b"gone", &vec![7; 3 << 20]), file(b"also gone", &vec![7; 3 << 20])]);
    let upper = tar(&[file(b".wh.gone", b""), file(b".wh.also gone", b""), file(b"f", &vec![8; 2 << 20])]);
    let json = format!("[{}]", listed("c.json", "[]", r#"["1/layer.tar","2/layer.tar"]"#));
    let archive = tar(&[
        file(b"1/layer.tar", &lower),
        file(b"2/layer.tar", &upper),
        file(b"c.json", &config("amd64", &[&lower, &upper])),
        file(b"manifest.json", json.as_bytes()),
    ]);
    let source = case.write("image.tar.zst", &zstd(&archive));
    let volume = VolumeOptions { size: SizePolicy::Fixed(4 << 20), ..Default::default() };
    assert_eq!(case.build(&BuildOptions { volume, ..case.options() }, &source).unwrap().files, 1);
    let volume = VolumeOptions { size: SizePolicy::Fixed(1 << 20), ..Default::default() };
    let error = case.build(&BuildOptions { volume, ..case.options() }, &source).unwrap_err();
    assert!(matches!(error, BuildError::Overfull { .. } | BuildError::TooSmall { .. }), "{error}");
}
