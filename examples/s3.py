"""Stream a Lance table from S3, or from any server that speaks S3.

    export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
    python examples/s3.py s3://bucket/train.lance [--endpoint http://127.0.0.1:9000]

The options below are those of ``lance.dataset(storage_options=...)``. They go to the download
process over a private socket: never to a command line, a log or the disk. What is not given there
(here the keys) Lance looks up itself: environment, profile, instance role. For tokens that lapse,
give ``storage_options="package.module:function"``, which is called in the download process and
returns ``(options, expiry in unix seconds)``.
"""

import argparse
import os
import time

from streaming import StreamingDataset
from torch.utils.data import DataLoader

from lance_stream import LanceStream


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("uri", help="s3://bucket/path/table.lance")
    parser.add_argument("--endpoint", default=os.environ.get("AWS_ENDPOINT_URL"))
    parser.add_argument("--region", default=os.environ.get("AWS_REGION", "us-east-1"))
    parser.add_argument("--columns", nargs="+", help="read only these")
    parser.add_argument("--local", help="cache directory; default: one that the next run finds")
    arguments = parser.parse_args()

    options = {"region": arguments.region}
    if arguments.endpoint:
        options["endpoint"] = arguments.endpoint
        if arguments.endpoint.startswith("http://"):
            options["allow_http"] = "true"

    stream = LanceStream(
        arguments.uri,
        local=arguments.local,
        columns=arguments.columns,
        storage_options=options,
        download_timeout=30,  # seconds for one attempt at one shard; two more attempts follow
    )
    # cache_limit bounds the disk that shards take; predownload is how many samples ahead of
    # training each worker asks for: with a slow store, a few shards' worth.
    dataset = StreamingDataset(
        streams=[stream], batch_size=64, shuffle=True, cache_limit="10gb", predownload=8_192
    )
    # The identity collate keeps samples as dicts: default_collate refuses None and bytes.
    loader = DataLoader(dataset, batch_size=64, num_workers=2, collate_fn=list)

    started, rows = time.perf_counter(), 0
    for batch in loader:
        if not rows:
            print({name: type(value).__name__ for name, value in batch[0].items()})
        rows += len(batch)
    print(f"{stream}: {rows:,} rows, {rows / (time.perf_counter() - started):,.0f} rows/s")


if __name__ == "__main__":
    main()
