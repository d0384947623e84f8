#![no_main]

holdfast_fuzz_guided::guided!();
