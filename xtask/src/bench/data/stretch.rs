//! The longest time that a background task runs without a yield while a file streams. For
//! comparison, the same for a task whose stretches all do the same work: any excess over that work
//! is time taken by interrupts and by the virtual machine's host.

use super::super::Result;
use super::report::{Target, absolute};
use super::{IMAGE, Options, image, stream};
use extant_rt::trace::Record;
use extant_rt::{Class, Nanos, RealConfig, Rt, Sink, TaskEvent};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Name of the task whose stretches are known.
const KNOWN: &str = "known work";
/// Multiplications per stretch: about 50 µs.
const KNOWN_TURNS: u64 = 50_000;

/// Does the same work repeatedly, for a twentieth of the time.
async fn known_work(rt: Rt, is_over: Arc<AtomicBool>) {
    let mut sum = 1_u64;
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..KNOWN_TURNS {
            sum = std::hint::black_box(sum.wrapping_mul(6_364_136_223_846_793_005));
        }
        rt.sleep(Nanos::from_millis(1)).await;
    }
}

pub(super) fn run(options: &Options) -> Result<()> {
    let (mut processor, mut took, mut known) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let path = image(options, IMAGE, options.stream_bytes)?;
        let rt = Rt::real(RealConfig::default());
        let longest = Arc::new(Longest::default());
        rt.set_sink(Some(longest.clone()));
        let is_over = Arc::new(AtomicBool::new(false));
        let control = rt.spawn(KNOWN, Class::Normal, known_work(rt.clone(), is_over.clone()));
        stream::ours(&rt, &path, options.stream_bytes)?;
        is_over.store(true, Ordering::Relaxed);
        rt.block_on(control)??;
        let mut tasks: Vec<Task> = std::mem::take(&mut *longest.0.lock()).into_values().collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(task.processor));
        for task in tasks.iter().take(5) {
            eprintln!("{}: {} on its processor, {} by the clock", task.name, task.processor, task.took);
        }
        let (controls, tasks): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|task| task.name == KNOWN);
        known.extend(controls.iter().map(|task| task.processor.0 as f64 / 1e3));
        let worst = |of: fn(&Task) -> Nanos| tasks.iter().map(of).max().unwrap_or_default().0 as f64 / 1e3;
        processor.push(worst(|task| task.processor));
        took.push(worst(|task| task.took));
    }
    let what = "longest stretch of a background task beside the stream, of processor time";
    absolute(what, "µs", &processor, Target::AtMost(200.0));
    absolute("the same of a task that does 50 µs of work at a time", "µs", &known, Target::None);
    absolute("the first by the clock, with what else the machine ran", "µs", &took, Target::None);
    Ok(())
}
