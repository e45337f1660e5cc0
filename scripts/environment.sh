# Sourced by the scripts beside it. Makes .venv with the pinned, hashed packages and the project itself.

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "rowpack needs Python 3.11 or newer; none was found on the path (set PYTHON to one)" >&2
    return 1
}

# make_environment run|dev: install requirements/run.txt or dev.txt and the project, unless they are as they were.
make_environment() {
    local lock_file="requirements/$1.txt" installed=".venv/installed-$1.txt" python
    if cat "$lock_file" pyproject.toml | cmp -s - "$installed"; then
        return
    fi
    if [ ! -x .venv/bin/python ]; then
        python=$(find_python)
        echo "making .venv with $("$python" --version)" >&2
        "$python" -m venv .venv
    fi
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock_file"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
    cat "$lock_file" pyproject.toml >"$installed"
}
