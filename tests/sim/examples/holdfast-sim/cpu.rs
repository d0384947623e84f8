//! The processor time that runs took: on a busy machine the only figure that means anything.

use std::time::Duration;

/// Fields of `/proc/self/stat` after the name of the program: what the children that have ended took, themselves and in
/// the kernel.
const CHILDREN_TIME_FIELDS: [usize; 2] = [13, 14];
/// Linux counts in hundredths of a second there, on every machine.
const TICK: Duration = Duration::from_millis(10);

/// Of all runs that have ended. Zero where the system does not say.
pub(crate) fn children_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    TICK * ticks(&stat).unwrap_or_default()
}

fn ticks(stat: &str) -> Option<u32> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    CHILDREN_TIME_FIELDS.iter().map(|field| fields.get(*field)?.parse::<u32>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_may_hold_anything() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 200 0 0 11 12 1300 14 20 0 1 0 99 1000 1 18446744073709551615";
        assert_eq!(ticks(stat), Some(1_314));
        assert_eq!(ticks("7 (a"), None);
    }
}
