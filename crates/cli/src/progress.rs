//! A progress bar on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;

/// A progress bar in bytes on standard error; hidden if that is not a terminal, or with `--quiet`.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// A bar that is not shown is not advanced, because it would still estimate its speed.
    is_shown: bool,
}

impl Progress {
    /// A bar for an estimated total of bytes.
    pub(crate) fn new(total_bytes: u64, quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total_bytes), target);
        let style = "{elapsed_precise} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Self { bar, is_shown: shown }
    }

    /// A bar for the runs of a sweep, with the remaining time.
    pub(crate) fn of_runs(runs: u64, quiet: bool) -> Self {
        let progress = Self::new(runs, quiet);
        let style = "{elapsed_precise} {wide_bar} {pos} of {len} runs, {msg}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            progress.bar.set_style(style);
        }
        progress
    }

    /// A bar without units, with the remaining time.
    pub(crate) fn of_steps(quiet: bool) -> Self {
        let progress = Self::new(1, quiet);
        if let Ok(style) =
            ProgressStyle::with_template("{elapsed_precise} {wide_bar} {percent} %, {eta} left")
        {
            progress.bar.set_style(style);
        }
        progress
    }

    /// The bar as a callback that takes the finished runs, how many of those were kept from
    /// earlier, and the total.
    pub(crate) fn of_sweep(&self) -> extant_lab::sweep::SweepProgress {
        let bar = self.bar.clone();
        Arc::new(move |done, kept, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(format!("{kept} of them kept before"));
        })
    }

    pub(crate) fn advance(&self, bytes: u64) {
        if self.is_shown {
            self.bar.inc(bytes);
        }
    }

    /// The bar as a callback that takes the amount done and the total.
    pub(crate) fn to_callback(&self) -> extant_image::Progress {
        let bar = self.bar.clone();
        Arc::new(move |done, of| {
            bar.set_length(of);
            bar.set_position(done);
        })
    }

    /// Hides the bar while a function prints.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
