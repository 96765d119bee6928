//! `cargo xtask fsx`: the model-based test of file data, for any length of time.
//!
//! It compares one file in the library with a vector: buffered and direct reads and writes,
//! truncations, the `fallocate` family, syncs and remounts, on every kind of volume. e2fsck and a
//! kernel mount check the result. The test is `space/model.rs` of `extant`, in a release build.

use std::process::Command;

/// Name of the test in `extant`.
const TEST: &str = "model::a_file_is_as_its_model_after_any_operations";

/// Runs `--rounds N` seeds (default 10) from `--seed N` on (default 1), each with `--ops N`
/// operations (default 2000).
pub(crate) fn run(args: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let (mut first, mut rounds, mut ops) = (1_u64, 10_u64, 2000_u64);
    for pair in args.chunks(2) {
        match *pair {
            ["--seed", n] => first = n.parse()?,
            ["--rounds", n] => rounds = n.parse()?,
            ["--ops", n] => ops = n.parse()?,
            _ => return Err("usage: cargo xtask fsx [--seed N] [--rounds N] [--ops N]".into()),
        }
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for seed in first..first.saturating_add(rounds) {
        println!("EXTANT_SEED={seed} EXTANT_OPS={ops}");
        let status = Command::new(&cargo)
            .args(["test", "--quiet", "--release", "--package", "extant", "--test", "space"])
            .args(["--", "--exact", TEST])
            .env("EXTANT_SEED", seed.to_string())
            .env("EXTANT_OPS", ops.to_string())
            .status()?;
        if !status.success() {
            return Err(format!(
                "seed {seed} failed: `cargo xtask fsx --seed {seed} --rounds 1 --ops {ops}` repeats it"
            )
            .into());
        }
    }
    println!(
        "fsx: seeds {first} to {}, {ops} operations each on every kind of volume: none failed",
        first + rounds - 1
    );
    Ok(())
}
