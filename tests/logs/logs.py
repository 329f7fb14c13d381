"""What tests of reading have in common."""

import io
import zipfile

from bert4rec.logs.log import Log


def rows_of(log: Log) -> list[tuple[object, ...]]:
    """User, item and, where there are times, seconds since 1970 of every action, in the order of the log."""
    columns = [log.user_ids.gather(log.users).to_list(), log.item_ids.gather(log.items).to_list()]
    if log.times is not None:
        columns.append([time // 1_000_000 for time in log.times.tolist()])
    return list(zip(*columns, strict=True))


def zipped(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()
