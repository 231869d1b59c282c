//! Profiles: how long kernels took on the device, and how near that is to what the device can do.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nx_vulkan_ir::DType;

use crate::device::DeviceInfo;
use crate::kernel::{Pipeline, PipelineKey, Statistics};
use crate::work::Work;

/// Rows that a printed profile has; the rest is summed up in one.
const MAX_PRINTED: usize = 40;

/// Launches of which is known when they ran: those that came last.
const MAX_LAUNCHES: usize = 1 << 16;

/// What a device can do at most, as measured or as its maker says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Bytes read and written per second, together.
    pub bytes_per_second: f64,
    /// Operations per second: two for each fma of f32.
    pub flops_per_second: f64,
}

/// All launches of one kernel, or all fills or copies.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileRow {
    /// The kernel's name and the beginning of its hash, or `fill` or `copy`.
    pub kernel: String,
    /// How often it ran.
    pub calls: u64,
    /// Time on the device.
    pub time: Duration,
    /// Bytes that the launches read.
    pub read_bytes: u64,
    /// Bytes that the launches wrote.
    pub written_bytes: u64,
    /// Operations of the launches; `None` where those of one of them are not known.
    pub flops: Option<u64>,
    /// What the driver's compiler made of the kernel, where it was asked.
    pub statistics: Option<Statistics>,
}

impl ProfileRow {
    /// Time of one call on average.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.time.as_nanos() / u128::from(self.calls.max(1))).unwrap_or(u64::MAX))
    }

    /// Bytes read and written per second; `None` where none are known or no time passed.
    pub fn bytes_per_second(&self) -> Option<f64> {
        rate(self.read_bytes.saturating_add(self.written_bytes), self.time)
    }

    /// Operations per second; `None` where they are not known or no time passed.
    pub fn flops_per_second(&self) -> Option<f64> {
        self.flops.and_then(|flops| rate(flops, self.time))
    }

    /// The larger share of the device's limits, from 0 to 1, and whether it is that of memory.
    pub fn share(&self, limits: &Limits) -> Option<(f64, bool)> {
        let memory = self.bytes_per_second().map(|x| x / limits.bytes_per_second);
        let arithmetic = self.flops_per_second().map(|x| x / limits.flops_per_second);
        match (memory, arithmetic) {
            (Some(memory), Some(arithmetic)) if arithmetic > memory => Some((arithmetic, false)),
            (Some(memory), _) => Some((memory, true)),
            (None, arithmetic) => arithmetic.map(|share| (share, false)),
        }
    }
}

fn rate(count: u64, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}

/// One launch of a kernel, a fill or a copy.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// As [`ProfileRow::kernel`].
    pub kernel: Arc<str>,
    /// When it began, on the device's clock, which has an origin of its own.
    pub start: Duration,
    /// Time on the device.
    pub time: Duration,
}

/// How long each kernel took. [`fmt::Display`] writes a table, the kernels that took longest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The device's name.
    pub device: String,
    /// Types that the device lacks, whose kernels compute in words of 32 bits.
    pub lowered: Vec<DType>,
    /// What took longest first.
    pub rows: Vec<ProfileRow>,
    /// What the device can do, if that was measured or given.
    pub limits: Option<Limits>,
    /// Commands that there was no room to measure.
    pub unmeasured: u64,
}

impl Profile {
    /// Time of all kernels, fills and copies.
    pub fn time(&self) -> Duration {
        self.rows.iter().map(|row| row.time).sum()
    }
}

fn number(x: Option<f64>) -> String {
    x.map_or_else(|| "-".to_string(), |x| if x < 10.0 { format!("{x:.2}") } else { format!("{x:.1}") })
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().take(MAX_PRINTED).map(|row| row.kernel.len()).max().unwrap_or(0).max(6);
        let calls: u64 = self.rows.iter().map(|row| row.calls).sum();
        writeln!(f, "{}: {calls} launches took {:.3} ms on the device", self.device, ms(self.time()))?;
        if let Some(Limits { bytes_per_second, flops_per_second }) = self.limits {
            let (memory, arithmetic) = (bytes_per_second * 1e-9, flops_per_second * 1e-9);
            writeln!(f, "Limits: {memory:.1} GB/s, {arithmetic:.1} GFLOP/s (fma of f32)")?;
        }
        if !self.lowered.is_empty() {
            let names: Vec<&str> = self.lowered.iter().map(|dtype| dtype.name()).collect();
            writeln!(f, "Lowered types: {}", names.join(", "))?;
        }
        let head = ["calls", "total ms", "mean us", "% time", "GB/s", "GFLOP/s", "of limit"];
        let [calls, total, mean, part, memory, arithmetic, share] = head;
        writeln!(
            f,
            "{:<width$} {calls:>8} {total:>11} {mean:>10} {part:>7} {memory:>9} {arithmetic:>10} {share:>12}",
            "kernel"
        )?;
        let all = self.time().as_secs_f64();
        for row in self.rows.iter().take(MAX_PRINTED) {
            let share = self.limits.and_then(|limits| row.share(&limits)).map_or_else(
                || "-".to_string(),
                |(share, is_memory)| format!("{:.1} % {}", share * 100.0, if is_memory { "memory" } else { "fma" }),
            );
            let part = if all > 0.0 { row.time.as_secs_f64() / all * 100.0 } else { 0.0 };
            writeln!(
                f,
                "{:<width$} {:>8} {:>11.3} {:>10.1} {part:>7.1} {:>9} {:>10} {share:>12}",
                row.kernel,
                row.calls,
                ms(row.time),
                row.mean().as_secs_f64() * 1e6,
                number(row.bytes_per_second().map(|x| x * 1e-9)),
                number(row.flops_per_second().map(|x| x * 1e-9)),
            )?;
        }
        let rest = self.rows.get(MAX_PRINTED..).unwrap_or_default();
        if !rest.is_empty() {
            let time: Duration = rest.iter().map(|row| row.time).sum();
            let calls: u64 = rest.iter().map(|row| row.calls).sum();
            let name = format!("{} others", rest.len());
            writeln!(f, "{name:<width$} {calls:>8} {:>11.3}", ms(time))?;
        }
        let told = self.rows.iter().take(MAX_PRINTED).filter_map(|row| Some((row, row.statistics.as_ref()?)));
        for (row, statistics) in told {
            writeln!(f, "{:<width$} {statistics}", row.kernel)?;
        }
        if self.unmeasured > 0 {
            writeln!(f, "{} launches were not measured", self.unmeasured)?;
        }
        Ok(())
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What was measured.
#[derive(Debug, Clone)]
pub enum Measured {
    /// Launches of a kernel.
    Kernel(Arc<Pipeline>),
    /// Fills.
    Fill,
    /// Copies.
    Copy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Kernel(PipelineKey),
    Fill,
    Copy,
}

/// The profile of an engine while it grows.
#[derive(Debug, Default)]
pub struct Profiler {
    is_on: AtomicBool,
    rows: Mutex<HashMap<Key, ProfileRow>>,
    launches: Mutex<VecDeque<(Key, Duration, Duration)>>,
    limits: Mutex<Option<Limits>>,
    unmeasured: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Profiler {
    /// Whether times are taken.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Answers whether it was on.
    pub fn switch(&self, on: bool) -> bool {
        self.is_on.swap(on, Relaxed)
    }

    /// Forgets what was measured.
    pub fn reset(&self) {
        lock(&self.rows).clear();
        lock(&self.launches).clear();
        self.unmeasured.store(0, Relaxed);
    }

    /// The bounds to compare with, if they were measured.
    pub fn limits(&self) -> Option<Limits> {
        *lock(&self.limits)
    }

    /// Sets the bounds to compare with.
    pub fn set_limits(&self, limits: Limits) {
        *lock(&self.limits) = Some(limits);
    }

    /// Notes that an interval could not be measured.
    pub fn miss(&self) {
        self.unmeasured.fetch_add(1, Relaxed);
    }

    /// Adds one command, when it began and how long it took.
    pub fn add(&self, what: &Measured, work: Option<Work>, start: Duration, time: Duration) {
        let (key, name): (Key, &dyn Fn() -> String) = match what {
            Measured::Kernel(pipeline) => (Key::Kernel(pipeline.key()), &|| pipeline.name()),
            Measured::Fill => (Key::Fill, &|| "fill".to_string()),
            Measured::Copy => (Key::Copy, &|| "copy".to_string()),
        };
        self.keep(key, start, time);
        let mut rows = lock(&self.rows);
        let row = rows.entry(key).or_insert_with(|| ProfileRow {
            kernel: name(),
            calls: 0,
            time: Duration::ZERO,
            read_bytes: 0,
            written_bytes: 0,
            flops: Some(0),
            statistics: match what {
                Measured::Kernel(pipeline) => pipeline.statistics().cloned(),
                Measured::Fill | Measured::Copy => None,
            },
        });
        row.calls += 1;
        row.time += time;
        let work = work.unwrap_or_default();
        row.read_bytes = row.read_bytes.saturating_add(work.read_bytes);
        row.written_bytes = row.written_bytes.saturating_add(work.written_bytes);
        row.flops = row.flops.zip(work.flops).map(|(a, b)| a.saturating_add(b));
    }

    fn keep(&self, key: Key, start: Duration, time: Duration) {
        let mut launches = lock(&self.launches);
        if launches.len() == MAX_LAUNCHES {
            launches.pop_front();
        }
        launches.push_back((key, start, time));
    }

    /// The launches measured so far, as many as are kept.
    pub fn launches(&self) -> Vec<Launch> {
        let names: HashMap<Key, Arc<str>> =
            lock(&self.rows).iter().map(|(&key, row)| (key, Arc::from(row.kernel.as_str()))).collect();
        let named = |&(key, start, time): &(Key, Duration, Duration)| {
            names.get(&key).map(|kernel| Launch { kernel: Arc::clone(kernel), start, time })
        };
        lock(&self.launches).iter().filter_map(named).collect()
    }

    /// What was measured so far on that device.
    pub fn profile(&self, device: &DeviceInfo) -> Profile {
        let mut rows: Vec<ProfileRow> = lock(&self.rows).values().cloned().collect();
        rows.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.kernel.cmp(&b.kernel)));
        Profile {
            device: device.name.clone(),
            lowered: device.lowered_types(),
            rows,
            limits: self.limits(),
            unmeasured: self.unmeasured.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kernel: &str, ms: u64, bytes: u64, flops: Option<u64>) -> ProfileRow {
        let time = Duration::from_millis(ms);
        ProfileRow {
            kernel: kernel.to_string(),
            calls: 4,
            time,
            read_bytes: bytes,
            written_bytes: 0,
            flops,
            statistics: None,
        }
    }

    #[test]
    fn the_launches_that_came_last_are_kept() {
        let profiler = Profiler::default();
        let at = |i: usize| Duration::from_nanos(i as u64);
        for i in 0..MAX_LAUNCHES + 2 {
            let what = if i % 2 == 0 { Measured::Fill } else { Measured::Copy };
            profiler.add(&what, None, at(i), at(1));
        }
        let launches = profiler.launches();
        assert_eq!(launches.len(), MAX_LAUNCHES);
        assert_eq!(launches[0], Launch { kernel: Arc::from("fill"), start: at(2), time: at(1) });
        assert_eq!(&*launches[MAX_LAUNCHES - 1].kernel, "copy");
        profiler.reset();
        assert!(profiler.launches().is_empty());
    }

    #[test]
    fn tables_say_what_is_known() {
        let limits = Limits { bytes_per_second: 100e9, flops_per_second: 1000e9 };
        let rows = vec![
            row("dot.square.f32-0a", 8, 80_000_000, Some(4_000_000_000)),
            row("copy", 2, 100_000_000, Some(0)),
            row("lu_panel.f32-0b", 0, 0, None),
        ];
        let (device, lowered) = ("a device".to_string(), vec![]);
        let mut profile = Profile { device, lowered, rows, limits: Some(limits), unmeasured: 0 };
        let table = profile.to_string();
        let words = |line: usize| table.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(0).join(" "), "a device: 12 launches took 10.000 ms on the device");
        assert_eq!(
            words(3),
            ["dot.square.f32-0a", "4", "8.000", "2000.0", "80.0", "10.0", "500.0", "50.0", "%", "fma"]
        );
        assert_eq!(words(4), ["copy", "4", "2.000", "500.0", "20.0", "50.0", "-", "50.0", "%", "memory"]);
        assert_eq!(words(5), ["lu_panel.f32-0b", "4", "0.000", "0.0", "0.0", "-", "-", "-"]);
        profile.limits = None;
        profile.lowered = vec![DType::S64, DType::F64];
        profile.unmeasured = 3;
        profile.rows.extend((0..40).map(|i| row(&format!("map.{i}"), 0, 0, None)));
        let table = profile.to_string();
        assert!(table.contains("3 others") && table.ends_with("3 launches were not measured\n"), "{table}");
        assert!(table.contains("\nLowered types: s64, f64\n"), "{table}");
        assert!(!table.contains("Limits") && !table.contains("% memory"), "{table}");
    }
}
