//! A server's counters at one moment, parsed from their text.

use std::collections::BTreeMap;

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Operations by name.
    pub(crate) operations: BTreeMap<String, Operation>,
    /// Values that do not belong to an operation, by name without the prefix.
    pub(crate) gauges: BTreeMap<String, u64>,
}

/// The counters of one operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Operation {
    pub(crate) count: u64,
    pub(crate) errors: u64,
    seconds: f64,
    /// Bounds in seconds, with the number of requests that took at most that long.
    buckets: Vec<(f64, u64)>,
}

impl Operation {
    /// Mean time of a request, in seconds.
    pub(crate) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.seconds / self.count as f64 }
    }

    /// An upper bound in seconds for this percentile; `None` if it lies beyond the last bucket.
    pub(crate) fn quantile(&self, percent: u64) -> Option<f64> {
        let wanted = u128::from(self.count) * u128::from(percent);
        let bucket = self.buckets.iter().find(|(_, below)| u128::from(*below) * 100 >= wanted);
        bucket.map(|(bound, _)| *bound)
    }

    fn since(&self, before: &Self) -> Self {
        let buckets = self.buckets.iter().map(|&(bound, below)| {
            let earlier = before.buckets.iter().find(|(other, _)| *other == bound);
            (bound, below.saturating_sub(earlier.map_or(0, |(_, below)| *below)))
        });
        Self {
            count: self.count.saturating_sub(before.count),
            errors: self.errors.saturating_sub(before.errors),
            seconds: (self.seconds - before.seconds).max(0.0),
            buckets: buckets.collect(),
        }
    }
}

/// A line of the text: its name, the labels, and the value.
fn parts(line: &str) -> Option<(&str, BTreeMap<&str, &str>, &str)> {
    let (name, value) = line.strip_prefix("extant_")?.rsplit_once(' ')?;
    let Some((name, labels)) = name.split_once('{') else { return Some((name, BTreeMap::new(), value)) };
    let labels = labels.strip_suffix('}')?.split(',').filter_map(|label| {
        let (name, value) = label.split_once('=')?;
        Some((name, value.trim_matches('"')))
    });
    Some((name, labels.collect(), value))
}

impl Sample {
    /// Skips unknown lines, because a server of another version may write them.
    pub(crate) fn parse(text: &str) -> Self {
        let mut sample = Self::default();
        for (name, labels, value) in text.lines().filter_map(parts) {
            let count = value.parse().unwrap_or(0);
            let Some(&operation) = labels.get("op") else {
                sample.gauges.insert(name.into(), count);
                continue;
            };
            let operation = sample.operations.entry(operation.into()).or_default();
            match (name, labels.get("le").and_then(|le| le.parse::<f64>().ok())) {
                ("request_seconds_count", _) => operation.count = count,
                ("request_seconds_sum", _) => operation.seconds = value.parse().unwrap_or(0.0),
                ("request_seconds_bucket", Some(bound)) if bound.is_finite() => {
                    operation.buckets.push((bound, count));
                }
                ("request_errors_total", _) => operation.errors += count,
                _ => {}
            }
        }
        sample
    }

    /// The difference from an earlier sample. Gauges keep their newest values.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let none = Operation::default();
        let operations = self.operations.iter().map(|(name, operation)| {
            (name.clone(), operation.since(before.operations.get(name).unwrap_or(&none)))
        });
        let gauges = self.gauges.iter().map(|(name, value)| match name.ends_with("_total") {
            true => (name.clone(), value.saturating_sub(before.gauges.get(name).copied().unwrap_or(0))),
            false => (name.clone(), *value),
        });
        Self { operations: operations.collect(), gauges: gauges.collect() }
    }

    /// Number of all requests, and of failed requests.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let sum = |of: fn(&Operation) -> u64| self.operations.values().map(of).sum();
        (sum(|operation| operation.count), sum(|operation| operation.errors))
    }

    /// Operations that were requested at least once, most frequent first.
    pub(crate) fn by_count(&self) -> impl Iterator<Item = (&str, &Operation)> {
        let asked = self.operations.iter().filter(|(_, operation)| operation.count > 0);
        let mut all: Vec<_> = asked.map(|(name, operation)| (&**name, operation)).collect();
        all.sort_by_key(|(_, operation)| std::cmp::Reverse(operation.count));
        all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_server_is_understood() {
        let text = "# HELP extant_request_seconds Time\n\
                    extant_request_seconds_bucket{op=\"lookup\",le=\"0.000001\"} 1\n\
                    extant_request_seconds_bucket{op=\"lookup\",le=\"0.000004\"} 3\n\
                    extant_request_seconds_bucket{op=\"lookup\",le=\"+Inf\"} 4\n\
                    extant_request_seconds_sum{op=\"lookup\"} 0.5\n\
                    extant_request_seconds_count{op=\"lookup\"} 4\n\
                    extant_request_errors_total{op=\"lookup\",errno=\"2\"} 1\n\
                    extant_request_errors_total{op=\"lookup\",errno=\"5\"} 2\n\
                    extant_dirty_bytes 4096\nextant_journal_commits_total 9\nother 5\n";
        let sample = Sample::parse(text);
        let lookup = &sample.operations["lookup"];
        assert_eq!((lookup.count, lookup.errors, lookup.mean()), (4, 3, 0.125));
        assert_eq!([20, 50, 99].map(|percent| lookup.quantile(percent)), [Some(1e-6), Some(4e-6), None]);
        assert_eq!((sample.gauges["dirty_bytes"], sample.totals()), (4096, (4, 3)));
        let before = Sample::parse(&text.replace("} 4", "} 3").replace("total 9", "total 7"));
        let since = sample.since(&before);
        assert_eq!((since.operations["lookup"].count, since.gauges["journal_commits_total"]), (1, 2));
        assert_eq!(since.gauges["dirty_bytes"], 4096);
        assert_eq!(since.by_count().map(|(name, _)| name).collect::<Vec<_>>(), ["lookup"]);
    }
}
