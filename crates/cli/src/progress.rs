//! A progress bar on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;

/// A bar over bytes on standard error; nothing where that is no terminal, or with `--quiet`.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// For an estimated total of bytes.
    pub(crate) fn new(total_bytes: u64, quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total_bytes), target);
        let style = "{elapsed_precise} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// For the runs of a sweep, with the time that is left.
    pub(crate) fn of_runs(runs: u64, quiet: bool) -> Self {
        let progress = Self::new(runs, quiet);
        let style = "{elapsed_precise} {wide_bar} {pos} of {len} runs, {msg}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            progress.0.set_style(style);
        }
        progress
    }

    /// The bar as a function of the runs that are over, those of them that were kept before, and all.
    pub(crate) fn of_sweep(&self) -> extant_lab::sweep::Progress {
        let bar = self.0.clone();
        Arc::new(move |done, kept, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(format!("{kept} of them kept before"));
        })
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// The bar as a function of what is done and how much there is.
    pub(crate) fn to_callback(&self) -> extant_image::Progress {
        let bar = self.0.clone();
        Arc::new(move |done, of| {
            bar.set_length(of);
            bar.set_position(done);
        })
    }

    /// Runs a function that prints, with the bar hidden.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
