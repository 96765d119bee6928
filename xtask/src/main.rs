//! Development tasks: `cargo xtask TASK`.

fn main() {
    eprintln!("usage: cargo xtask TASK");
    std::process::exit(2);
}
