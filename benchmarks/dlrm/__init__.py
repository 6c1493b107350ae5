"""The job of the suite `jobs`: a DLRM that several frameworks train on the same clicks."""
