//! Development tasks: `cargo xtask TASK`.

mod bench;
mod faults;
mod fsx;
mod torture;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["bench", what, ref rest @ ..] => bench::run(what, rest),
        ["torture", ref rest @ ..] => torture::run(rest),
        ["fsx", ref rest @ ..] => fsx::run(rest),
        ["faults", ref rest @ ..] => faults::faults(rest),
        ["hostile", ref rest @ ..] => faults::hostile(rest),
        _ => Err("usage: cargo xtask bench WHAT, cargo xtask torture|fsx|faults|hostile [OPTION]...".into()),
    };
    if let Err(error) = result {
        eprintln!("xtask: {error}");
        std::process::exit(2);
    }
}
