//! Extant next to other crates for ext4 and the kernel. The program is in a separate workspace, so
//! that its dependencies stay out of this one's.

use super::Result;
use std::path::Path;
use std::process::Command;

pub(super) fn run(args: &[&str]) -> Result<()> {
    // Set by cargo, which runs this.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("run it as `cargo xtask bench peers`")?;
    let root = Path::new(&own).parent().ok_or("xtask is in no folder")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--release", "--locked", "--manifest-path"]);
    command.arg(root.join("bench/peers/Cargo.toml"));
    command.arg("--target-dir").arg(root.join("target/peers"));
    let status = command.arg("--").args(args).current_dir(root).status()?;
    if status.success() { Ok(()) } else { Err(format!("the bench ended with {status}").into()) }
}
