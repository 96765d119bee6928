//! Plants the mutants in a copy of the tree and runs crash tests against each.
//!
//! All are compiled at once, as `if mutant::on(N) { planted } else { original }`, and an
//! environment variable picks one: separate builds would take an hour. The copy and its build stay
//! in the target folder, so the next time only differences are compiled.

use super::mutants::{Finder, MUTANTS, Mutant};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Selects the active mutant.
const VARIABLE: &str = "EXTANT_MUTANT";

/// A module added to each crate with mutants in the copy, which the planted places call.
const SWITCH: &str = r#"
pub(crate) mod mutant {
    pub(crate) fn on(number: usize) -> bool {
        static ALIVE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let alive = || std::env::var("EXTANT_MUTANT").ok().and_then(|text| text.parse().ok());
        *ALIVE.get_or_init(|| alive().unwrap_or(usize::MAX)) == number
    }
}
"#;

/// Processor time of one search, in seconds: a mutant may loop forever. The time of day would
/// depend on what else runs.
const LIMIT_SECONDS: u32 = 600;

/// Limit in seconds for a mutant that waits for ever.
const WAIT_SECONDS: &str = "1800";

/// What `timeout` exits with when it has ended a program.
const TIMED_OUT: i32 = 124;

/// Signal of a program that has used up its processor time (signal(7)).
const SIGXCPU: i32 = 24;

/// Folders of the tree to copy.
const FOLDERS: [&str; 4] = ["crates", "machines", "tidy", "xtask"];

/// Runs one in `every` of the mutants with `named` in their names, starting with number `first`.
/// Each must be caught; the workloads must catch it both with and without pruning. If all are run,
/// the searches must also find nothing without a mutant.
pub(crate) fn run(first: usize, every: usize, named: &str) -> Result<()> {
    let (copy, lost) = plant()?;
    let programs = build(&copy)?;
    for words in &lost {
        println!("not planted: {words}");
    }
    let is_all = every == 1 && named.is_empty();
    if is_all {
        let kinds = [Looks::Workloads("journal", "whole"), Looks::Workloads("journal", "pruned")];
        let kinds = kinds.into_iter().chain([Looks::Workloads("no-journal", "whole"), Looks::Cases]);
        for search in kinds.map(|looks| Search::begin(&programs, None, looks)) {
            if let Some(found) = search?.end()? {
                return Err(format!("without a mutant: {found}").into());
            }
        }
        for finder in MUTANTS.iter().map(|mutant| mutant.finder).collect::<BTreeSet<_>>() {
            if let Finder::Test(program, name) = finder
                && let Some(found) = Search::begin(&programs, None, Looks::Test(program, name))?.end()?
            {
                return Err(format!("without a mutant: {found}").into());
            }
        }
    }
    let (mut searches, mut missed) = (0, Vec::new());
    let is_planted = |mutant: &Mutant| !lost.iter().any(|words| words.split(':').next() == Some(mutant.name));
    let is_wanted = |mutant: &Mutant| mutant.name.contains(named) && is_planted(mutant);
    let chosen = MUTANTS.iter().enumerate().skip(first % every).step_by(every);
    for (number, mutant) in chosen.filter(|(_, mutant)| is_wanted(mutant)) {
        let rounds = match mutant.finder {
            Finder::Workloads if mutant.is_unjournaled() => vec![Looks::Workloads("no-journal", "whole")],
            Finder::Workloads => {
                vec![Looks::Workloads("journal", "whole"), Looks::Workloads("journal", "pruned")]
            }
            Finder::Cases => vec![Looks::Cases],
            Finder::Test(program, name) => vec![Looks::Test(program, name)],
        };
        // Start all rounds at once.
        let begun: Vec<_> =
            rounds.iter().map(|&looks| Search::begin(&programs, Some(number), looks)).collect();
        for (search, looks) in begun.into_iter().zip(rounds) {
            searches += 1;
            match search?.end()? {
                Some(found) => println!("{}, {looks}: {found}", mutant.name),
                None => {
                    println!("{}, {looks}: MISSED", mutant.name);
                    missed.push(mutant.name);
                }
            }
        }
    }
    println!("{searches} searches, {} without a find", missed.len());
    if is_all && !lost.is_empty() {
        return Err(format!("{} mutants have no place any more", lost.len()).into());
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join(", ")).into()) }
}

/// One way to search for a mutant.
#[derive(Clone, Copy, Debug)]
enum Looks {
    /// The workloads, on volumes of this kind, with whole or pruned states.
    Workloads(&'static str, &'static str),
    Cases,
    /// Tests of this program whose names contain the string.
    Test(&'static str, &'static str),
}

impl std::fmt::Display for Looks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workloads(_, states) => f.write_str(states),
            Self::Cases => f.write_str("cases"),
            Self::Test(program, name) => write!(f, "{program} {name}"),
        }
    }
}

/// The programs that search for mutants.
struct Programs {
    hunt: PathBuf,
    /// Test programs by the name of their target.
    tests: BTreeMap<String, PathBuf>,
}

/// A running search for a mutant.
struct Search {
    child: Child,
    looks: Looks,
}

impl Search {
    fn begin(programs: &Programs, mutant: Option<usize>, looks: Looks) -> Result<Self> {
        let cpu = format!("--cpu={LIMIT_SECONDS}:{}", LIMIT_SECONDS + 60);
        let mut command = Command::new("timeout");
        command.args([WAIT_SECONDS, "prlimit", &cpu]).env_remove(VARIABLE);
        match looks {
            Looks::Workloads(volumes, states) => command.arg(&programs.hunt).args([volumes, states]),
            Looks::Cases => command.arg(&programs.hunt).arg("cases"),
            Looks::Test(program, name) => {
                let program = programs.tests.get(program).ok_or_else(|| format!("no tests {program}"))?;
                command.arg(program).arg(name)
            }
        };
        if let Some(number) = mutant {
            command.env(VARIABLE, number.to_string());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Self { child: command.spawn()?, looks })
    }

    /// Waits for the end; returns what it found, if anything.
    fn end(self) -> Result<Option<String>> {
        let output = self.child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        // `timeout` ends with the same signal as its program if it can; otherwise it reports the
        // signal in its exit code.
        let signal = output.status.signal();
        if signal == Some(SIGXCPU) || output.status.code() == Some(128 + SIGXCPU) {
            return Ok(Some(format!("no end within {LIMIT_SECONDS} s of processor time")));
        }
        if output.status.code() == Some(TIMED_OUT) {
            return Ok(Some(format!("no end within {WAIT_SECONDS} s")));
        }
        if let Looks::Test(_, name) = self.looks {
            return match output.status.code() {
                Some(0) if said.contains("running 0 tests") => Err(format!("no test {name}").into()),
                Some(0) => Ok(None),
                _ => Ok(Some(format!("{name} fails"))),
            };
        }
        match output.status.code() {
            Some(0) => Ok(Some(said)),
            Some(1) => Ok(None),
            Some(2) => Err(said.into()),
            _ => Ok(Some(format!("it ended with {}", output.status))),
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder of the copy and its build.
fn folder() -> Result<PathBuf> {
    let target = std::env::var("CARGO_TARGET_DIR").map_or_else(|_| root().join("target"), PathBuf::from);
    Ok(std::path::absolute(target)?.join("mutants"))
}

/// Creates the copy, in which any test can then be run, and prints each mutant's number in the
/// variable that selects it.
pub(crate) fn plant_only() -> Result<()> {
    let (copy, lost) = plant()?;
    for (number, mutant) in MUTANTS.iter().enumerate() {
        println!("{VARIABLE}={number}: {}", mutant.name);
    }
    for words in &lost {
        println!("not planted: {words}");
    }
    println!("the tree with the mutants: {}", copy.display());
    Ok(())
}

/// Creates the copy. Returns its path and the mutants that could not be planted.
fn plant() -> Result<(PathBuf, Vec<String>)> {
    let copy = folder()?.join("tree");
    let planted = planted()?;
    let mut files = BTreeMap::new();
    for folder in FOLDERS {
        list(&root(), folder, &mut files)?;
    }
    files.extend(["Cargo.toml", "Cargo.lock"].map(|path| (path.to_owned(), None)));
    for (path, changed) in planted.sources {
        files.insert(path, Some(changed));
    }
    let kept: BTreeSet<String> = files.keys().cloned().collect();
    for (path, contents) in files {
        let contents = match contents {
            Some(contents) => contents.into_bytes(),
            None => std::fs::read(root().join(&path))?,
        };
        let to = copy.join(&path);
        // Write only what differs, so that cargo recompiles only that.
        if std::fs::read(&to).ok().as_ref() != Some(&contents) {
            std::fs::create_dir_all(to.parent().expect("below the copy"))?;
            std::fs::write(&to, contents)?;
        }
    }
    let mut stale = BTreeMap::new();
    for folder in FOLDERS {
        list(&copy, folder, &mut stale)?;
    }
    for path in stale.keys().filter(|path| !kept.contains(*path)) {
        std::fs::remove_file(copy.join(path))?;
    }
    Ok((copy, planted.lost))
}

/// Builds the search and the tests in the copy.
fn build(copy: &Path) -> Result<Programs> {
    let target = folder()?;
    let cargo = |args: &[&str]| -> Result<String> {
        let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(args)
            .args(["--offline", "--locked", "--quiet"])
            .current_dir(copy)
            // Use a separate target folder: packages of the two workspaces have the same names, so
            // the tree would otherwise be built with the copy's libraries.
            .env("CARGO_TARGET_DIR", &target)
            .envs([("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")])
            .output()?;
        if !built.status.success() {
            let words = String::from_utf8_lossy(&built.stderr);
            return Err(format!("the tree with its mutants does not compile:\n{words}").into());
        }
        Ok(String::from_utf8_lossy(&built.stdout).into_owned())
    };
    cargo(&["build", "--package", "extant-torture", "--example", "hunt"])?;
    let packages = ["--package", "extant-fs", "--package", "extant-torture"];
    let tests = ["--lib", "--test", "unlogged", "--no-run", "--message-format", "json-render-diagnostics"];
    let told = cargo(&[&["test"][..], &packages, &tests].concat())?;
    let mut programs = BTreeMap::new();
    for line in told.lines() {
        let artifact: serde_json::Value = serde_json::from_str(line)?;
        let name = artifact["target"]["name"].as_str();
        if let (Some(name), Some(program)) = (name, artifact["executable"].as_str()) {
            programs.insert(name.replace('-', "_"), PathBuf::from(program));
        }
    }
    Ok(Programs { hunt: target.join("debug/examples/hunt"), tests: programs })
}

/// Lists the files below a folder of a tree, to be copied unchanged.
fn list(tree: &Path, folder: &str, files: &mut BTreeMap<String, Option<String>>) -> Result<()> {
    for entry in std::fs::read_dir(tree.join(folder))? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        match entry.file_type()?.is_dir() {
            true => list(tree, &path, files)?,
            false => drop(files.insert(path, None)),
        }
    }
    Ok(())
}

/// The tree's sources with the mutants planted.
struct Planted {
    sources: BTreeMap<String, String>,
    /// Mutants whose place has changed, with the reason.
    lost: Vec<String>,
}

fn planted() -> Result<Planted> {
    let mut pieces: BTreeMap<&str, Vec<(usize, usize, &Mutant)>> = BTreeMap::new();
    let mut lost = Vec::new();
    for (number, mutant) in MUTANTS.iter().enumerate() {
        let source = std::fs::read_to_string(root().join(mutant.file)).unwrap_or_default();
        let (nth, of) = mutant.occurrence;
        let places: Vec<usize> = source.match_indices(mutant.find).map(|(at, _)| at).collect();
        match places.len() == of {
            true => pieces.entry(mutant.file).or_default().push((places[nth], number, mutant)),
            false => {
                lost.push(format!("{}: {} places in {}, not {of}", mutant.name, places.len(), mutant.file))
            }
        }
    }
    let mut sources = BTreeMap::new();
    for (file, mut at) in pieces {
        let mut source = std::fs::read_to_string(root().join(file))?;
        at.sort_by_key(|&(place, number, _)| (place, number));
        // From last to first, so that earlier positions stay valid; mutants of the same place are
        // tried in order.
        while let Some(&(place, _, mutant)) = at.last() {
            let same = at.iter().position(|&(other, ..)| other == place).expect("it is there");
            let find = mutant.find;
            let mut text = format!("{{ {find} }}");
            for (_, number, mutant) in at.drain(same..) {
                if mutant.find != find {
                    return Err(format!("mutant {}: it overlaps another", mutant.name).into());
                }
                text = format!("{{ if crate::mutant::on({number}) {{ {} }} else {text} }}", mutant.put);
            }
            if !is_statement(find) {
                text = format!("({text})");
            }
            source.replace_range(place..place + find.len(), &text);
        }
        sources.insert(file.to_owned(), source);
    }
    let lib = |file: &String| format!("{}/src/lib.rs", file.split("/src/").next().unwrap_or_default());
    for lib in sources.keys().map(lib).collect::<BTreeSet<_>>() {
        let source = std::fs::read_to_string(root().join(&lib))?;
        sources.insert(lib, format!("{source}{SWITCH}"));
    }
    Ok(Planted { sources, lost })
}

fn is_statement(find: &str) -> bool {
    find.ends_with(';')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_have_their_places() {
        let planted = planted().unwrap_or_else(|error| panic!("{error}"));
        assert!(MUTANTS.len() >= 40 + planted.lost.len(), "{:#?}", planted.lost);
    }
}
