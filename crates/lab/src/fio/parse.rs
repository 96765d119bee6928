//! Sections and words.

use super::{Job, JobError};
use std::path::{Path, PathBuf};

/// The format of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// fio's report for people.
    #[default]
    Normal,
    /// fio's JSON.
    Json,
}

/// A fio command line.
#[derive(Clone, Debug, Default)]
pub struct CommandLine {
    /// The jobs, those of job files included, in order.
    pub jobs: Vec<Job>,
    /// `--output-format`.
    pub format: OutputFormat,
    /// `--output`.
    pub output: Option<PathBuf>,
}

/// Reads a job file; `file` is named in errors.
///
/// # Errors
/// Names file, line and key of the first thing that is not understood.
pub fn job_file(file: &str, text: &str) -> Result<Vec<Job>, JobError> {
    sections(file, text, &Job::default())
}

fn sections(file: &str, text: &str, defaults: &Job) -> Result<Vec<Job>, JobError> {
    let mut global = defaults.clone();
    let mut jobs: Vec<(usize, Job)> = Vec::new();
    let mut in_global = false;
    let error = |line: usize, problem: String| JobError { place: format!("{file}:{line}"), problem };
    for (index, raw) in text.lines().enumerate() {
        let number = index + 1;
        // A comment may also follow something.
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
        job.set(key, value).map_err(|problem| error(number, format!("{key}: {problem}")))?;
    }
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

/// Reads the words of a fio command line: `--key=value` or `-key=value`, where `--name` begins a job and what stands
/// before the first one holds for all; other words are job files, which `read` reads.
///
/// # Errors
/// Names the word that is not understood, or what [`job_file`] names.
pub fn command_line(
    words: &[String],
    read: impl Fn(&Path) -> Result<String, String>,
) -> Result<CommandLine, JobError> {
    let mut line = CommandLine::default();
    let mut global = Job::default();
    // The job that the words are about, if one has begun; its place is that of its name.
    let mut current: Option<(String, Job)> = None;
    let mut jobs: Vec<(String, Job)> = Vec::new();
    let mut files = Vec::new();
    for word in words {
        let error = |problem: String| JobError { place: word.clone(), problem };
        let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            files.push(word.clone());
            continue;
        };
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        match key {
            "output-format" => {
                line.format = match value {
                    "normal" => OutputFormat::Normal,
                    "json" => OutputFormat::Json,
                    _ => return Err(error("known formats are normal and json".into())),
                }
            }
            "output" if value.is_empty() => return Err(error("write --output=FILE".into())),
            "output" => line.output = Some(value.into()),
            "name" => {
                jobs.extend(current.take());
                let mut job = global.clone();
                job.set(key, value).map_err(error)?;
                current = Some((word.clone(), job));
            }
            "machine" | "elevator" | "requests" | "seed" | "trace" | "cache" | "dirty-limit"
            | "dirty-background" | "dirty-control" => {
                return Err(error(format!("--{key} belongs before the first job file and fio's options")));
            }
            _ => {
                let job = current.as_mut().map_or(&mut global, |(_, job)| job);
                job.set(key, value).map_err(error)?;
            }
        }
    }
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
    use super::super::{Engine, Pattern};
    use super::*;
    use extant_rt::Nanos;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn parse(line: &str) -> Result<CommandLine, JobError> {
        command_line(&words(line), |path| Err(format!("{} is not to be read", path.display())))
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
            (job.size_bytes, job.runtime, job.think),
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
