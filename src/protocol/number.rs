//! Number tokens, exactly.

/// The value of a number token if it is whole: `60000.0` and `6e4` are 60000. `None` if it is none, or out of any range that
/// matters.
#[must_use]
pub fn integer(raw: &str) -> Option<i128> {
    let (sign, raw) = raw.strip_prefix('-').map_or((1, raw), |rest| (-1, rest));
    if !raw.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (mantissa, exponent) = raw.split_once(['e', 'E']).unwrap_or((raw, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    let exponent: i64 = exponent.parse().ok()?;
    let zeros = (digits.len() - significant.len()) as i64 - fraction.len() as i64;
    let power = u32::try_from(exponent.checked_add(zeros)?).ok()?;
    significant.parse::<i128>().ok()?.checked_mul(10_i128.checked_pow(power)?)?.checked_mul(sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_many_spellings() {
        for (raw, value) in [
            ("0", 0),
            ("-0", 0),
            ("0.000e99", 0),
            ("42", 42),
            ("42.0", 42),
            ("4.2e1", 42),
            ("-4200E-2", -42),
            ("9007199254740993", (1 << 53) + 1),
        ] {
            assert_eq!(integer(raw), Some(value), "{raw}");
        }
        for raw in ["", "-", "x", "1.5", "1e-1", "1e400", "1e999999999999999999999", "true", " 1", "+1", "--1", "1.2.3"]
        {
            assert_eq!(integer(raw), None, "{raw}");
        }
    }
}
