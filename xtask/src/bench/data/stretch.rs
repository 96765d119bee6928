//! The longest stretch of a background task without a yield, while a file streams.

use super::super::Result;
use super::report::{Target, absolute};
use super::{IMAGE, Options, image, stream};
use extant_rt::trace::Record;
use extant_rt::{Nanos, RealConfig, Rt, Sink, TaskEvent};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The longest poll of each task.
#[derive(Default)]
struct Longest(Mutex<BTreeMap<u32, Task>>);

#[derive(Default)]
struct Task {
    name: String,
    processor: Nanos,
    took: Nanos,
}

impl Sink for Longest {
    fn record(&self, record: &Record) {
        if let Some(&TaskEvent::Polled { task, processor, took }) = record.event.of() {
            let mut tasks = self.0.lock();
            let longest = tasks.entry(task).or_default();
            longest.processor = longest.processor.max(processor);
            longest.took = longest.took.max(took);
        }
    }

    fn name(&self, kind: &'static str, number: u32, name: &str) {
        if kind == "task" {
            self.0.lock().entry(number).or_default().name = name.into();
        }
    }
}

pub(super) fn run(options: &Options) -> Result<()> {
    let (mut processor, mut took) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let path = image(options, IMAGE, options.stream_bytes)?;
        let rt = Rt::real(RealConfig::default());
        let longest = Arc::new(Longest::default());
        rt.set_sink(Some(longest.clone()));
        stream::ours(&rt, &path, options.stream_bytes)?;
        let mut tasks: Vec<Task> = std::mem::take(&mut *longest.0.lock()).into_values().collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(task.processor));
        for task in tasks.iter().take(5) {
            eprintln!("{}: {} on its processor, {} by the clock", task.name, task.processor, task.took);
        }
        let worst = |of: fn(&Task) -> Nanos| tasks.iter().map(of).max().unwrap_or_default().0 as f64 / 1e3;
        processor.push(worst(|task| task.processor));
        took.push(worst(|task| task.took));
    }
    let what = "longest stretch of a background task beside the stream, of processor time";
    absolute(what, "µs", &processor, Target::AtMost(200.0));
    absolute("the same by the clock, with what else the machine ran", "µs", &took, Target::None);
    Ok(())
}
