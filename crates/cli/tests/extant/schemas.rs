//! What `--json` prints is what `docs/schema.json` describes.

use crate::testbed::{debugfs, extant, extant_with, have, place};
use serde_json::Value;
use std::fs;
use std::path::Path;

struct Schema(Value);

impl Schema {
    fn load() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema.json");
        Self(serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
    }

    /// Parses a command's output, which must be what the definition of this name describes.
    #[track_caller]
    fn described(&self, name: &str, output: &[u8]) -> Value {
        let value: Value = serde_json::from_slice(output).unwrap();
        let told = self.check(&self.0["$defs"][name], &value, name);
        assert_eq!(told, Ok(()), "{value:#}");
        value
    }

    /// The keywords that the file uses (JSON Schema 2020-12), and no others.
    fn check(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let keywords = schema.as_object().unwrap_or_else(|| panic!("there is no schema for {at}"));
        let ok = |is_so: bool, told: &str| if is_so { Ok(()) } else { Err(format!("{at}: {told}: {value}")) };
        for (keyword, wanted) in keywords {
            match keyword.as_str() {
                "description" => {}
                "$ref" => {
                    let name = wanted.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                    self.check(&self.0["$defs"][name], value, at)?;
                }
                "anyOf" => {
                    let any = wanted.as_array().unwrap();
                    ok(any.iter().any(|one| self.check(one, value, at).is_ok()), "is none of these")?;
                }
                "type" => {
                    let is_so = match wanted.as_str().unwrap() {
                        "object" => value.is_object(),
                        "array" => value.is_array(),
                        "string" => value.is_string(),
                        "boolean" => value.is_boolean(),
                        "integer" => value.is_i64() || value.is_u64(),
                        "null" => value.is_null(),
                        other => panic!("{other}"),
                    };
                    ok(is_so, wanted.as_str().unwrap())?;
                }
                "enum" => ok(wanted.as_array().unwrap().contains(value), "is none of these")?,
                "minimum" => ok(value.as_i64() >= wanted.as_i64() || value.is_u64(), "is too small")?,
                "items" => {
                    for item in value.as_array().into_iter().flatten() {
                        self.check(wanted, item, &format!("{at}[]"))?;
                    }
                }
                "properties" => {
                    for (name, schema) in wanted.as_object().unwrap() {
                        if let Some(value) = value.get(name) {
                            self.check(schema, value, &format!("{at}.{name}"))?;
                        }
                    }
                }
                "required" => {
                    for name in wanted.as_array().unwrap() {
                        ok(value.get(name.as_str().unwrap()).is_some(), &format!("{name} is missing"))?;
                    }
                }
                "additionalProperties" => {
                    let known = schema["properties"].as_object();
                    for (name, value) in value.as_object().into_iter().flatten() {
                        if known.is_none_or(|known| !known.contains_key(name)) {
                            ok(*wanted != false, &format!("{name} is not described"))?;
                            self.check(wanted, value, &format!("{at}.{name}"))?;
                        }
                    }
                }
                other => panic!("the test does not know {other}"),
            }
        }
        Ok(())
    }
}

#[test]
fn what_is_printed_is_what_is_described() {
    let schema = Schema::load();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (source, image, other) = (at("source"), at("image"), at("other"));
    fs::create_dir_all(dir.path().join("source/d")).unwrap();
    fs::write(at("source/f"), vec![7; 9000]).unwrap();
    std::os::unix::fs::symlink("f", at("source/link")).unwrap();
    let root = place(Path::new(&image), "/");
    let of = |path: &str| place(Path::new(&image), path);
    let run = |name: &str, words: &[&str]| schema.described(name, &extant(words).clean());

    run("build", &["mkfs", &other, "1M", "--json"]);
    run("build", &["build", &source, "-o", &image, "--size", "4M", "-J", "none", "--json"]);
    run("build-into", &["build", &source, "--into", &of("/more"), "--json"]);
    let put = run("put", &["put", "-r", &source, &of("/put"), "--json"]);
    assert_eq!(put, serde_json::json!({"files": 2, "directories": 2, "bytes": 9000}));
    extant_with(b"mknod /n c 5 1\nxattr -s user.a=b /f\nchmod 600 /n", ["edit", &image]).clean();
    run("ls", &["ls", "-lR", &image, "--json"]);
    for path in ["/f", "/link", "/n", "/d"] {
        run("stat", &["stat", &of(path), "--json"]);
    }
    run("tree", &["tree", &image, "--json"]);
    run("df", &["df", &image, &other, "--json"]);
    run("info", &["info", &image, "--json", "-v"]);
    run("trim", &["trim", &image, "--json"]);
    run("defrag", &["defrag", &of("/f"), "--json"]);
    run("recover", &["recover", &image, "--json"]);
    run("check", &["check", &image, "--json"]);
    let copied = run("copy", &["export", &root, "-o", &at("tar"), "--json"]);
    assert_eq!(copied["lost"], serde_json::json!([]));
    run("copy", &["cp", &of("/f"), &at("copy"), "--json"]);
    for words in [&["export", &root, "-o", "-", "--json"][..], &["cp", &of("/f"), "-", "--json"]] {
        let ran = extant(words);
        assert!(ran.code == Some(2) && ran.stderr.contains("name a file"), "{}", ran.stderr);
    }
    run("shrink", &["shrink", &image, "-o", &at("small"), "--json"]);
    let ran = extant(["diff", "--all-volume", &image, &other, "--json"]);
    assert!(schema.described("diff", &ran.stdout).as_array().unwrap().len() > 8);

    // A script that fails says where it stopped.
    for (options, done) in [(&[][..], 1), (&["--atomic"], 0)] {
        let ran =
            extant_with(b"mkdir -p /e\n\nrm /none\n", [&["edit", &image, "--json"][..], options].concat());
        let told = schema.described("edit", &ran.stdout);
        assert_eq!(
            (ran.code, &told["done"], &told["failed_line"]),
            (Some(1), &done.into(), &3.into()),
            "{told}"
        );
    }
    let ran = extant_with(b"put --json a /b", ["edit", &image]);
    assert!(ran.code == Some(2) && ran.stderr.contains("--json is an option"), "{}", ran.stderr);

    // What is lost is listed.
    if !have("debugfs") {
        return;
    }
    debugfs(Path::new(&image), &["sif /more/f block[0] 1".into(), "sif /put/d mode 0".into()]);
    for words in [&["export", &root, "-o", &at("tar"), "--json"][..], &["cp", &root, &at("out"), "--json"]] {
        let _ = fs::create_dir(at("out"));
        let ran = extant(words);
        let told = schema.described("copy", &ran.stdout);
        assert_eq!(ran.code, Some(3), "{}", ran.stderr);
        let lost: Vec<_> = told["lost"].as_array().unwrap().iter().map(|loss| &loss["path"]).collect();
        assert!(lost.contains(&&"/more/f".into()) && lost.contains(&&"/put/d".into()), "{told}");
    }
}
