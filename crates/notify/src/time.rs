//! The event time's text form, `2031-02-03T04:05:06.789Z`, from and to milliseconds since the Unix epoch. Reads no
//! clock.

const DAY_MS: i64 = 86_400_000;
/// 0000-01-01T00:00:00.000Z and the last millisecond of the year 9999: what four digits of a year can write.
const FIRST_MS: i64 = -719_528 * DAY_MS;
const LAST_MS: i64 = 2_932_897 * DAY_MS - 1;

/// The time as text in UTC with milliseconds, or `None` outside of the years 0000 to 9999.
pub(crate) fn to_text(ms: i64) -> Option<String> {
    if !(FIRST_MS..=LAST_MS).contains(&ms) {
        return None;
    }
    let (year, month, day) = date_of(ms.div_euclid(DAY_MS));
    let of_day = ms.rem_euclid(DAY_MS);
    let (seconds, millis) = (of_day / 1000, of_day % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z"))
}

/// Milliseconds from an RFC 3339 text (`Z` or an offset; fractions beyond milliseconds are cut), or `None`.
pub(crate) fn from_text(text: &str) -> Option<i64> {
    let (date, rest) = (text.get(..10)?, text.get(11..)?);
    if !matches!(text.as_bytes()[10], b'T' | b't' | b' ') {
        return None;
    }
    let (year, month, day) = (number(date.get(..4)?)?, number(date.get(5..7)?)?, number(date.get(8..)?)?);
    let (hour, minute, second) =
        (number(rest.get(..2)?)?, number(rest.get(3..5)?)?, number(rest.get(6..8)?)?);
    let separators = [&date[4..5], &date[7..8], rest.get(2..3)?, rest.get(5..6)?];
    let days = days_until(year, month, day);
    let exists = (1..=12).contains(&month) && day >= 1 && date_of(days) == (year, month, day);
    if separators != ["-", "-", ":", ":"] || !exists || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (millis, zone) = fraction(rest.get(8..)?)?;
    let local = days * DAY_MS + (hour * 3600 + minute * 60 + second) * 1000 + millis;
    Some(local - offset_ms(zone)?)
}

fn number(digits: &str) -> Option<i64> {
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// The milliseconds of `.789...`, and what comes after.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(text) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let millis = format!("{:0<3}", text[..end].get(..3).unwrap_or(&text[..end]));
    (end > 0).then_some((number(&millis)?, &text[end..]))
}

fn offset_ms(zone: &str) -> Option<i64> {
    if zone == "Z" || zone == "z" {
        return Some(0);
    }
    let sign = if zone.starts_with('+') { 1 } else { -1 };
    let well_formed = zone.len() == 6 && zone.starts_with(['+', '-']) && zone.get(3..4) == Some(":");
    let (hours, minutes) = (number(zone.get(1..3)?)?, number(zone.get(4..)?)?);
    (well_formed && hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes) * 60_000)
}

/// Days from 1970-01-01 to a date of the proleptic Gregorian calendar. Years are counted from March, so that the leap
/// day is the last of a year.
fn days_until(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468
}

/// The date that is `days` after 1970-01-01.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * from_march + 2) / 5 + 1, (from_march + 2) % 12 + 1);
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_times_have_their_known_text() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_927_857_906_789, "2031-02-03T04:05:06.789Z"),
            (FIRST_MS, "0000-01-01T00:00:00.000Z"),
            (LAST_MS, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(to_text(ms).as_deref(), Some(text));
            assert_eq!(from_text(text), Some(ms));
        }
        assert_eq!(to_text(FIRST_MS - 1), None);
        assert_eq!(to_text(i64::MAX), None);
    }

    #[test]
    fn other_spellings_of_a_time_are_read_and_what_is_no_time_is_not() {
        assert_eq!(from_text("1970-01-01T00:00:01Z"), Some(1000));
        assert_eq!(from_text("1970-01-01T01:00:00.5+01:00"), Some(500));
        assert_eq!(from_text("1970-01-01T00:00:00.123456789-00:01"), Some(60_123));
        for bad in [
            "",
            "1970-01-01",
            "1970-02-30T00:00:00Z",
            "1970-13-01T00:00:00Z",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:00:00",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00+1:00",
            "+970-01-01T00:00:00Z",
            "1970-01-01é00:00:00Z",
        ] {
            assert_eq!(from_text(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_time_reads_back(ms in FIRST_MS..=LAST_MS) {
            prop_assert_eq!(from_text(&to_text(ms).expect("within the years")), Some(ms));
        }

        #[test]
        fn no_text_is_too_odd_to_read(text in ".{0,40}") {
            let _ = from_text(&text);
        }
    }
}
