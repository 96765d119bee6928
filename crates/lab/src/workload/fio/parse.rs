//! Parses job files and command lines.

use super::options::Refused;
use super::without_effect::takes_a_word;
use super::{Job, JobError, KEYS};
use std::path::{Path, PathBuf};

/// The format of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// fio's human-readable report.
    #[default]
    Normal,
    /// fio's JSON.
    Json,
    /// fio's semicolon-separated line (version 3).
    Terse,
}

/// A fio command line.
#[derive(Clone, Debug, Default)]
pub struct CommandLine {
    /// All jobs in order, including those from job files.
    pub jobs: Vec<Job>,
    /// `--output-format`.
    pub format: OutputFormat,
    /// `--output`.
    pub output: Option<PathBuf>,
}

/// The mistakes found so far. Unknown keys are collected, so that all are reported at once.
#[derive(Default)]
struct Refusals {
    unknown: Vec<(String, String)>,
    first: Option<JobError>,
}

impl Refusals {
    /// Records the outcome of a key.
    fn note(&mut self, place: &str, key: &str, what: &str, result: Result<(), Refused>) {
        match result {
            Ok(()) => {}
            Err(Refused::Unknown) => self.unknown.push((place.to_owned(), key.to_owned())),
            Err(Refused::Because(problem)) => self.refuse(place, format!("{what}{problem}")),
        }
    }

    /// Records any other mistake.
    fn refuse(&mut self, place: &str, problem: String) {
        self.first.get_or_insert_with(|| JobError { place: place.to_owned(), problem });
    }

    /// Returns the error, if there is one.
    fn end(self, in_file: bool) -> Result<(), JobError> {
        let Some((place, key)) = self.unknown.first() else {
            return self.first.map_or(Ok(()), Err);
        };
        let place = if in_file { format!("{place}: {key}") } else { place.clone() };
        let without = "those without effect are listed by \"extant lab list\"";
        let mut problem = match &self.unknown[..] {
            [_] => format!("unknown key \"{key}\"; known are {KEYS}; {without}"),
            all => {
                let names: Vec<String> = all.iter().map(|(_, key)| format!("\"{key}\"")).collect();
                format!("unknown keys {}; known are {KEYS}; {without}", names.join(", "))
            }
        };
        if let Some(other) = self.first {
            problem += &format!("; and {other}");
        }
        Err(JobError { place, problem })
    }
}

/// Parses a job file; `file` is its name in errors.
///
/// # Errors
/// Names the file, line and key of all unknown keys and of the first other mistake.
pub fn job_file(file: &str, text: &str) -> Result<Vec<Job>, JobError> {
    sections(file, text, &Job::default())
}

fn sections(file: &str, text: &str, defaults: &Job) -> Result<Vec<Job>, JobError> {
    let mut global = defaults.clone();
    let mut jobs: Vec<(usize, Job)> = Vec::new();
    let mut in_global = false;
    let mut refusals = Refusals::default();
    let error = |line: usize, problem: String| JobError { place: format!("{file}:{line}"), problem };
    for (index, raw) in text.lines().enumerate() {
        let number = index + 1;
        // A comment may also follow other text.
        let line = raw.split(['#', ';']).next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.strip_suffix(']').filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| error(number, "a section is [name]".into()))?;
            in_global = name == "global";
            if !in_global {
                jobs.push((number, Job { name: name.to_owned(), ..global.clone() }));
            }
            continue;
        }
        let (key, value) = line.split_once('=').map_or((line, ""), |(key, value)| (key.trim(), value.trim()));
        let job = match jobs.last_mut() {
            _ if in_global => &mut global,
            Some((_, job)) => job,
            None => return Err(error(number, "a key before the first [section]".into())),
        };
        refusals.note(&format!("{file}:{number}"), key, &format!("{key}: "), job.set(key, value));
    }
    refusals.end(true)?;
    for (line, job) in &jobs {
        if let Some(problem) = job.contradiction() {
            return Err(error(*line, format!("[{}]: {problem}", job.name)));
        }
    }
    if jobs.is_empty() {
        return Err(error(1, "no job: a section such as [reader] is missing".into()));
    }
    Ok(jobs.into_iter().map(|(_, job)| job).collect())
}

/// Parses the words of a fio command line.
///
/// Options are `--key=value`, `-key=value`, or `--key value` unless the key is a flag. `--name`
/// starts a job; options before the first `--name` apply to all jobs. Other words are job files,
/// read with `read`.
///
/// # Errors
/// Names the words that were not understood, or as [`job_file`].
pub fn command_line(
    words: &[String],
    read: impl Fn(&Path) -> Result<String, String>,
) -> Result<CommandLine, JobError> {
    let mut line = CommandLine::default();
    let mut global = Job::default();
    // The job that the current words apply to, if one has started, with the place of its name.
    let mut current: Option<(String, Job)> = None;
    let mut jobs: Vec<(String, Job)> = Vec::new();
    let mut files = Vec::new();
    let mut refusals = Refusals::default();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let error = |problem: String| JobError { place: word.clone(), problem };
        let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            files.push(word.clone());
            continue;
        };
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key, value),
            None if takes_a_word(option) => {
                let apart = words.next_if(|next| !next.starts_with('-'));
                (option, apart.map_or("", String::as_str))
            }
            None => (option, ""),
        };
        match key {
            "output-format" => {
                line.format = match value {
                    "normal" => OutputFormat::Normal,
                    "json" => OutputFormat::Json,
                    "terse" | "minimal" => OutputFormat::Terse,
                    _ => return Err(error("known formats are normal, json and terse".into())),
                }
            }
            "minimal" => line.format = OutputFormat::Terse,
            "output" if value.is_empty() => return Err(error("write --output=FILE".into())),
            "output" => line.output = Some(value.into()),
            "name" => {
                jobs.extend(current.take());
                let mut job = global.clone();
                refusals.note(word, key, "", job.set(key, value));
                current = Some((word.clone(), job));
            }
            "machine" | "elevator" | "requests" | "seed" | "trace" | "cache" | "dirty-limit"
            | "dirty-background" | "dirty-control" | "set" | "volume" => {
                return Err(error(format!("--{key} belongs before the first job file and fio's options")));
            }
            _ => {
                let job = current.as_mut().map_or(&mut global, |(_, job)| job);
                refusals.note(word, key, "", job.set(key, value));
            }
        }
    }
    refusals.end(false)?;
    for file in files {
        let text = read(Path::new(&file)).map_err(|problem| JobError { place: file.clone(), problem })?;
        line.jobs.extend(sections(&file, &text, &global)?);
    }
    jobs.extend(current);
    for (place, job) in jobs {
        if let Some(problem) = job.contradiction() {
            return Err(JobError { place, problem });
        }
        line.jobs.push(job);
    }
    if line.jobs.is_empty() {
        let problem = "no job: give a job file, or --name=NAME and what it is to do".into();
        return Err(JobError { place: "command line".into(), problem });
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::super::{Durability, Engine, Pattern, Size};
    use super::*;
    use extant_rt::Nanos;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn parse(line: &str) -> Result<CommandLine, JobError> {
        command_line(&words(line), |path| Err(format!("{} must not be read", path.display())))
    }

    #[test]
    fn the_command_line_of_the_cfq_thread_is_what_it_says() {
        let line = parse(
            "-filename=/tmp/test -rw=randread -size=5G -runtime=15 -name=file1 -bs=4k -numjobs=500 -thinktime=1000000",
        )
        .unwrap();
        let [job] = &line.jobs[..] else { panic!("{:?}", line.jobs) };
        assert_eq!((job.name.as_str(), job.processes, job.block_bytes), ("file1", 500, 4096));
        assert_eq!(
            (job.size_bytes(), job.runtime, job.think),
            (5 << 30, Some(Nanos::from_secs(15)), Nanos::from_secs(1))
        );
        assert_eq!(job.pattern, Pattern { reads: true, writes: false, random: true });
        assert_eq!((job.engine, job.direct), (Engine::Sync("psync"), false));
        assert_eq!(job.file_of(3), "/tmp/test");
    }

    #[test]
    fn global_options_hold_for_the_sections_after_them() {
        let text = "; two jobs\n[global] # for all\nbs=8k;not 4k\ndirect=1 # yes\r\n\n[a]\nrw=write\n[global]\nbs=16k\n# later\n[b]\nstonewall\nsize=1m\n";
        let jobs = job_file("j.fio", text).unwrap();
        assert_eq!(
            jobs.iter().map(|j| (j.name.as_str(), j.block_bytes)).collect::<Vec<_>>(),
            [("a", 8192), ("b", 16384)]
        );
        assert!(jobs.iter().all(|j| j.direct) && !jobs[0].stonewall && jobs[1].stonewall);
        assert_eq!(jobs[1].file_of(2), "b.2.0");
    }

    #[test]
    fn mistakes_are_refused_by_name_and_line() {
        let refused = |text: &str| job_file("j.fio", text).unwrap_err().to_string();
        assert!(
            refused("[a]\nrw=read\nfoo=3\n").starts_with("j.fio:3: foo: unknown key \"foo\"; known are bs, ")
        );
        assert!(
            refused("[a]\nrw=nothing\n")
                .starts_with("j.fio:2: rw: \"nothing\" is not a pattern; known are read")
        );
        assert_eq!(refused("bs=4k\n"), "j.fio:1: a key before the first [section]");
        assert_eq!(refused("[a\n"), "j.fio:1: a section is [name]");
        assert_eq!(refused("[a]\nbs=0\n"), "j.fio:2: bs: must be above 0");
        assert_eq!(refused("[global]\nbs=4k\n"), "j.fio:1: no job: a section such as [reader] is missing");
        assert_eq!(
            refused("\n[a]\ntime_based\n"),
            "j.fio:2: [a]: time_based without a runtime never ends; add runtime="
        );
        assert!(refused("[a]\nfilename=a:b\n").starts_with("j.fio:2: filename: several files"));
        assert!(refused("[a]\nioengine=rados\n").contains("\"rados\" is not an engine"));
        assert!(
            parse("--name=a --wobble=1")
                .unwrap_err()
                .to_string()
                .starts_with("--wobble=1: unknown key \"wobble\"")
        );
        assert!(parse("--rw=read").unwrap_err().to_string().starts_with("command line: no job"));
        assert!(parse("missing.fio").unwrap_err().to_string().starts_with("missing.fio: "));
    }

    #[test]
    fn all_unknown_keys_are_named_at_once() {
        let refused =
            parse("--name=a --bssplit=4k/50 --rw=read --zonesize=1m --wobble").unwrap_err().to_string();
        let expected = "--bssplit=4k/50: unknown keys \"bssplit\", \"zonesize\", \"wobble\"; known are bs, ";
        assert!(refused.starts_with(expected), "{refused}");
        let refused = job_file("j.fio", "[a]\nfoo=1\nrw=x\n[b]\nbar\n").unwrap_err().to_string();
        assert!(refused.starts_with("j.fio:2: foo: unknown keys \"foo\", \"bar\"; known"), "{refused}");
        assert!(refused.contains("; and j.fio:3: rw: \"x\" is not a pattern"), "{refused}");
    }

    #[test]
    fn options_and_values_may_stand_apart() {
        let line =
            parse("-filename=/dev/sda -iodepth 4 -thread -rw=write --name x --bs 8k --direct --size=1m")
                .unwrap();
        let [job] = &line.jobs[..] else { panic!("{:?}", line.jobs) };
        assert_eq!((job.name.as_str(), job.depth, job.block_bytes, job.direct), ("x", 4, 8192, true));
        assert_eq!(job.without_effect, ["thread"]);
        // A flag takes no value, so the next word is a job file.
        assert!(parse("--thread jobs.fio").unwrap_err().to_string().starts_with("jobs.fio: "));
        assert_eq!(parse("--minimal --name=x --size=1m").unwrap().format, OutputFormat::Terse);
    }

    #[test]
    fn options_without_effect_are_taken_and_remembered() {
        let line = parse(
            "--randrepeat=1 --gtod_reduce=1 --name=a --size=1m --verify=0 --refill_buffers --eta-newline=1 --readonly \
             --iodepth_batch_submit=256 --exitall",
        )
        .unwrap();
        let expected = ["randrepeat", "gtod_reduce", "verify", "refill_buffers", "eta-newline", "readonly"];
        assert_eq!(line.jobs[0].without_effect[..6], expected);
        let refused = parse("--name=a --size=1m --verify=crc32c").unwrap_err().to_string();
        assert!(refused.starts_with("--verify=crc32c: \"crc32c\" would change"), "{refused}");
    }

    #[test]
    fn sizes_may_be_shares_and_blocks_of_any_length_through_the_cache() {
        let line =
            parse("--name=a --size=50% --bs=2300 --sync=1 --rwmixwrite=25 --loops=2 --rate_iops=10").unwrap();
        let job = &line.jobs[0];
        assert_eq!(
            (job.size, job.span_bytes(46_000), job.wanted_blocks(23_000)),
            (Size::Percent(50), 23_000, 20)
        );
        assert_eq!(
            (job.durability, job.read_percent, job.limit_bytes_s()),
            (Durability::Each, 75, Some(23_000))
        );
        let refused = parse("--name=a --size=1m --bs=2300 --direct=1").unwrap_err().to_string();
        assert!(refused.contains("with direct=1, bs and offset must be multiples of 512"), "{refused}");
    }

    #[test]
    fn processes_may_have_spans_of_their_own_in_a_file() {
        let line = parse(
            "--name=a --filesize=1g --size=10m --numjobs=4 --offset=1m --offset_increment=20m --bs=4k,4k",
        )
        .unwrap();
        let job = &line.jobs[0];
        assert_eq!((job.offset_of(0), job.offset_of(3), job.file_bytes()), (1 << 20, 61 << 20, 1 << 30));
        let job =
            &parse("--name=a --size=10m --numjobs=4 --offset_increment=20m --number_ios=7").unwrap().jobs[0];
        assert_eq!((job.file_bytes(), job.wanted_blocks(job.span_bytes(70 << 20))), (70 << 20, 7));
        assert_eq!(parse("--name=a --filesize=1g --rw=read").unwrap().jobs[0].size_bytes(), 1 << 30);
        let refused = parse("--name=a --size=1m --bsrange=4k-8k").unwrap_err().to_string();
        assert!(refused.contains("blocks of several lengths are not supported; give bs"), "{refused}");
        assert_eq!(parse("--name=a --size=1m --bsrange=8k-8k").unwrap().jobs[0].block_bytes, 8192);
        let refused = parse("--name=a --size=1m --bs=4k,8k").unwrap_err().to_string();
        assert!(refused.contains("different values for reads and writes"), "{refused}");
    }

    #[test]
    fn no_text_makes_the_reader_panic() {
        let mut rng = extant_rt::Rng::new(5);
        let bits = [
            "[",
            "]",
            "a",
            "=",
            "\n",
            "bs",
            "4k",
            "é",
            "rw",
            "size",
            "99999999999999999999",
            ";",
            " ",
            "global",
            "-",
        ];
        for _ in 0..5_000 {
            let text: String =
                (0..rng.below(20)).map(|_| bits[rng.below(bits.len() as u64) as usize]).collect();
            let _ = job_file("j", &text);
            let _ = parse(&text);
        }
    }
}
