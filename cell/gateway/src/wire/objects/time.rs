//! Times as the client protocol writes them. Pure arithmetic on the proleptic Gregorian calendar.

/// `2026-11-30T09:15:31.123000+00:00` for milliseconds since the Unix epoch.
pub fn iso8601(unix_ms: i64) -> String {
    let (days, in_day) = (unix_ms.div_euclid(86_400_000), unix_ms.rem_euclid(86_400_000));
    let (year, month, day) = civil_of_days(days);
    let (hour, minute, second, millisecond) =
        (in_day / 3_600_000, in_day / 60_000 % 60, in_day / 1000 % 60, in_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}000+00:00")
}

/// Days since the Unix epoch to year, month, day (Howard Hinnant's days algorithm).
fn civil_of_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_of_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_index = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_index + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Reads a time in UTC (`Z` or `+00:00`), to the millisecond.
pub fn parse_iso8601_ms(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').or_else(|| text.strip_suffix("+00:00"))?;
    let (date, time) = text.split_once('T')?;
    let numbers = |text: &str, separator: char| -> Option<Vec<i64>> {
        text.split(separator).map(|part| part.parse().ok().filter(|number| *number >= 0)).collect()
    };
    let [year, month, day] = numbers(date, '-')?[..] else { return None };
    let (whole, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(whole, ':')?[..] else { return None };
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) || fraction.is_empty() {
        return None;
    }
    let milliseconds: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let fits = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    let seconds = days_of_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    (fits && year < 10_000).then_some(seconds * 1000 + milliseconds)
}

/// Reads a time with any offset, and one without as UTC.
pub fn parse_any_iso8601_ms(text: &str) -> Option<i64> {
    if let Some(unix_ms) = parse_iso8601_ms(text).or_else(|| parse_iso8601_ms(&format!("{text}Z"))) {
        return Some(unix_ms);
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let digits =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<i64>().ok()).flatten();
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    let sign = match offset.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let local = parse_iso8601_ms(&format!("{local}Z"))?;
    (hours < 24 && minutes < 60).then_some(local - sign * (hours * 60 + minutes) * 60_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read_back() {
        assert_eq!(iso8601(0), "1970-01-01T00:00:00.000000+00:00");
        assert_eq!(iso8601(1_709_164_799_999), "2024-02-28T23:59:59.999000+00:00");
        assert_eq!(iso8601(1_709_164_800_000), "2024-02-29T00:00:00.000000+00:00");
        for unix_ms in [0, 1, 951_782_400_000, 1_709_164_800_123, 4_102_444_799_999] {
            assert_eq!(parse_iso8601_ms(&iso8601(unix_ms)), Some(unix_ms));
        }
        for garbage in ["", "2024", "2024-13-01T00:00:00Z", "2024-01-01T00:00:00", "2024-01-01T00:00:00.x+00:00", "é"]
        {
            assert_eq!(parse_iso8601_ms(garbage), None, "{garbage}");
        }
        for same in
            ["1970-01-01T00:00:00", "1970-01-01T02:00:00.0+02:00", "1969-12-31T18:30:00-05:30", "1970-01-01T00:00:00Z"]
        {
            assert_eq!(parse_any_iso8601_ms(same), Some(0), "{same}");
        }
        for garbage in [
            "",
            "é",
            "+02:00",
            "1970-01-01T00:00:00+25:00",
            "1970-01-01T00:00:00*02:00",
            "aaaaaé",
            "1970-01-01T00:00:00++2:00",
        ] {
            assert_eq!(parse_any_iso8601_ms(garbage), None, "{garbage}");
        }
    }
}
