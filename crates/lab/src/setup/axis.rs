//! Keys of a machine's file and the values that they take.

use extant_sim::Setting;

/// A key of the machine's file and the values it takes.
#[derive(Clone, Debug)]
pub struct Axis(Vec<Setting>);

impl Axis {
    /// Creates an axis from a key and its values, as `--set` takes them.
    ///
    /// # Errors
    /// Describes the syntax of a setting.
    pub fn new(key: &str, values: &[String]) -> Result<Self, String> {
        values.iter().map(|value| format!("{key}={value}").parse()).collect::<Result<_, _>>().map(Self)
    }

    /// Every combination of the axes' values.
    pub(crate) fn combinations(axes: &[Self]) -> Vec<Vec<Setting>> {
        combinations(axes.iter().map(|Self(values)| values.clone()))
    }
}

/// Every combination of a value from each list; the last list's values change fastest.
pub(crate) fn combinations<T: Clone>(lists: impl IntoIterator<Item = Vec<T>>) -> Vec<Vec<T>> {
    let mut all: Vec<Vec<T>> = vec![Vec::new()];
    for list in lists {
        let with = |before: &Vec<T>| {
            list.iter().map(|value| [&before[..], std::slice::from_ref(value)].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

impl std::str::FromStr for Axis {
    type Err = String;

    /// Parses `key=value,value,…`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, values)) => Self::new(key, &values.split(',').map(str::to_owned).collect::<Vec<_>>()),
            None => Err(format!("\"{text}\" is not KEY=VALUE,VALUE, such as hz=100,250,1000")),
        }
    }
}
