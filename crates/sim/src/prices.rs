//! Prices of work: as read from a machine file, and as a world looks them up.

use crate::table::{ModelError, Table};
use extant_rt::{Charge, CostTable, Nanos};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The table `[costs]` of a model: picoseconds per unit, by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prices {
    /// All work is free.
    Free,
    /// As listed in the machine file; `file` and the table's `line` are for errors.
    Listed { file: String, line: usize, picoseconds: BTreeMap<String, u64> },
}

impl Prices {
    /// Reads the table. It does not know which keys are required: see [`Prices::missing`].
    pub(crate) fn read(table: Table<'_>) -> Result<Self, ModelError> {
        let (file, line) = table.place();
        Ok(Self::Listed { file, line, picoseconds: table.all_picoseconds()? })
    }

    fn get(&self, key: &str) -> Option<u64> {
        match self {
            Self::Free => Some(0),
            Self::Listed { picoseconds, .. } => picoseconds.get(key).copied(),
        }
    }

    /// The first key of these tables without a price.
    pub(crate) fn missing(&self, tables: &[&CostTable]) -> Option<ModelError> {
        let Self::Listed { file, line, .. } = self else { return None };
        let key = tables.iter().flat_map(|table| table.keys).find(|key| self.get(key).is_none())?;
        let (key, problem) = (format!("costs.{key}"), "missing".to_owned());
        Some(ModelError { file: file.clone(), line: *line, key, problem })
    }
}

/// Maximum number of layers that charge.
const LAYERS: usize = 16;

/// A world's prices by layer, in the order in which layers first charged. Lookups need no lock and
/// no string.
#[derive(Debug)]
pub(crate) struct PriceList {
    prices: Prices,
    layers: [OnceLock<Layer>; LAYERS],
}

/// A layer's kinds of work.
type Layer = (&'static CostTable, Box<[Entry]>);

/// A kind of work: its price in picoseconds per unit, and units and nanoseconds spent on it, by
/// tasks and by interrupts. These are atomics only to be shareable; one thread at a time runs a
/// world.
#[derive(Debug)]
struct Entry {
    price: Option<u64>,
    spent: [(AtomicU64, AtomicU64); 2],
}

/// Processor time spent on one kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The layer that charged, as named by its cost table; "processors" for switches and wake-ups.
    pub layer: &'static str,
    /// The kind of work: its key in the machine file.
    pub key: &'static str,
    /// Whether it was done in an interrupt rather than by a task.
    pub interrupt: bool,
    /// Number of units.
    pub units: u64,
    /// The time spent.
    pub time: Nanos,
}

impl Spent {
    /// The work in `now` that was done since `before`; both are from the same world.
    pub fn since(mut now: Vec<Self>, before: &[Self]) -> Vec<Self> {
        let kind = |spent: &Self| (spent.layer, spent.key, spent.interrupt);
        for spent in &mut now {
            if let Some(old) = before.iter().find(|old| kind(old) == kind(spent)) {
                spent.units -= old.units;
                spent.time = spent.time.saturating_sub(old.time);
            }
        }
        now
    }
}

/// Why a charge has no price.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoPrice {
    /// The model does not list it.
    Unlisted { layer: &'static str, key: &'static str },
    /// The total overflows.
    TooMuch,
}

impl PriceList {
    pub(crate) fn new(prices: Prices) -> Self {
        Self { prices, layers: std::array::from_fn(|_| OnceLock::new()) }
    }

    /// How long this work takes, rounded to the nearest nanosecond; also records it as spent.
    pub(crate) fn price(&self, charge: Charge, interrupt: bool) -> Result<Nanos, NoPrice> {
        let (table, index, units) = match charge {
            Charge::Time(span) => return Ok(span),
            Charge::Units { table, index, units } => (table, index, units),
        };
        let entry = &self.layer(table)[index];
        let Some(each) = entry.price else {
            return Err(NoPrice::Unlisted { layer: table.layer, key: table.keys[index] });
        };
        let picoseconds = each.checked_mul(units).and_then(|total| total.checked_add(500));
        let time = picoseconds.map(|total| Nanos(total / 1_000)).ok_or(NoPrice::TooMuch)?;
        let (all_units, all_ns) = &entry.spent[usize::from(interrupt)];
        all_units.store(all_units.load(Relaxed).wrapping_add(units), Relaxed);
        all_ns.store(all_ns.load(Relaxed).wrapping_add(time.0), Relaxed);
        Ok(time)
    }

    /// Time spent on each kind of work so far, in the order in which layers first charged.
    pub(crate) fn spent(&self) -> Vec<Spent> {
        let layers = self.layers.iter().filter_map(OnceLock::get);
        let kinds = layers.flat_map(|(table, entries)| {
            let keyed = table.keys.iter().zip(entries.iter());
            keyed
                .flat_map(|(key, entry)| [false, true].map(|interrupt| (table.layer, *key, entry, interrupt)))
        });
        let spent = kinds.map(|(layer, key, entry, interrupt)| {
            let (units, ns) = &entry.spent[usize::from(interrupt)];
            Spent { layer, key, interrupt, units: units.load(Relaxed), time: Nanos(ns.load(Relaxed)) }
        });
        spent.filter(|spent| spent.units > 0).collect()
    }

    fn layer(&self, table: &'static CostTable) -> &[Entry] {
        for slot in &self.layers {
            let entry = |key: &&str| Entry { price: self.prices.get(key), spent: Default::default() };
            let list = || (table, table.keys.iter().map(entry).collect());
            let (listed, prices) = slot.get_or_init(list);
            if std::ptr::eq(*listed, table) {
                return prices;
            }
        }
        panic!("more than {LAYERS} layers charge for work; raise LAYERS");
    }
}
